"""The machine-readable progress line, which the operator reads from rank 0's log."""

import json
import math
from dataclasses import dataclass

from ddpjob_ranks import contract


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far training is. None means not known yet."""

    step: int
    total_steps: int
    epoch: int
    phase: str
    loss: float | None = None
    samples_per_second: float | None = None
    eta_seconds: float | None = None
    checkpoint_step: int | None = None

    def line(self) -> str:
        """The prefix and one JSON object, without newline; numbers only, so always far below the size limit."""
        fields: dict[str, float | int | str | None] = {
            contract.PROGRESS_STEP: self.step,
            contract.PROGRESS_TOTAL_STEPS: self.total_steps,
            contract.PROGRESS_EPOCH: self.epoch,
            contract.PROGRESS_LOSS: _rounded(self.loss, 6),
            contract.PROGRESS_SAMPLES_PER_SECOND: _rounded(self.samples_per_second, 1),
            contract.PROGRESS_ETA_SECONDS: _rounded(self.eta_seconds, 1),
            contract.PROGRESS_CHECKPOINT_STEP: self.checkpoint_step,
            contract.PROGRESS_PHASE: self.phase,
        }
        return contract.PROGRESS_PREFIX + json.dumps({k: v for k, v in fields.items() if v is not None})


def _rounded(value: float | None, digits: int) -> float | None:
    """JSON has no NaN and no infinity: they are left out."""
    return None if value is None or not math.isfinite(value) else round(value, digits)
