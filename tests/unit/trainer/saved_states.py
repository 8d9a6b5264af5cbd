"""States as torch.save writes them, and checkpoints of a few bytes."""

import io

import torch

from ddpjob_session.checkpoints.folder import CheckpointFolder


def to_bytes(content: object) -> bytes:
    """The content of the file."""
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def save(checkpoints: CheckpointFolder, step: int, state: bytes) -> None:
    """Save a checkpoint whose state is these bytes."""
    checkpoints.save(step, lambda file: file.write(state))


def newest(checkpoints: CheckpointFolder) -> tuple[int, bytes] | None:
    """Step and state of the newest checkpoint; None if there is none."""
    found = checkpoints.load_newest()
    return None if found is None else (found[0].step, bytes(found[1]))
