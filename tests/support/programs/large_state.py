"""A trainer whose checkpoints are large enough for a multipart upload, and which does not wait long for its storage."""

from typing import Any

import torch

from ddpjob_session.checkpoints import folder, object_store
from ddpjob_trainer.state import TrainingState

#: The least that S3 accepts for a part, except for the last one.
PART_BYTES = 5 * 2**20


def arrange() -> None:
    """Set this rank up; to be called before it trains."""
    content = TrainingState.content
    padding = torch.randint(0, 256, (4 * PART_BYTES,), dtype=torch.uint8)

    def padded(state: TrainingState) -> dict[str, Any]:
        return {**content(state), "padding": padding}

    TrainingState.content = padded  # type: ignore[method-assign,assignment]
    object_store.PART_BYTES = PART_BYTES  # type: ignore[misc]  # smaller
    object_store._RETRY = {"max_retries": 0}
    folder.RETRY_SECONDS = 0.2
