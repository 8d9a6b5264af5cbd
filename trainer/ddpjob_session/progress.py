"""The machine-readable progress line, which the operator reads from rank 0's log."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ddpjob_ranks import contract


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlaceRestarts:
    """How ranks of the attempt have started before, within their pods."""

    number: int = 0
    """How often all have started again."""
    cause: str | None = None
    """Why they last did, and at which step."""
    joined_replacements: int = 0
    """Replacements of pods whose ranks are here: the sum over all pods."""


NO_RESTARTS = InPlaceRestarts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far training is. None means not known yet."""

    step: int
    total_steps: int
    epoch: int | None
    phase: str
    alive: int = 0
    """Signs of life since the training began."""
    loss: float | None = None
    samples_per_second: float | None = None
    eta_seconds: float | None = None
    checkpoint_step: int | None = None
    restarts: InPlaceRestarts = NO_RESTARTS
    metrics: Mapping[str, float] = field(default_factory=dict)
    headline: str | None = None

    def line(self) -> str:
        """The prefix and one JSON object, without newline; with metrics that `check_metrics` accepts, below the size limit."""
        finite = {name: float(f"{value:.6g}") for name, value in self.metrics.items() if math.isfinite(value)}
        fields: dict[str, object] = {
            contract.PROGRESS_STEP: self.step,
            contract.PROGRESS_TOTAL_STEPS: self.total_steps,
            contract.PROGRESS_EPOCH: self.epoch,
            contract.PROGRESS_LOSS: _rounded(self.loss, 6),
            contract.PROGRESS_SAMPLES_PER_SECOND: _rounded(self.samples_per_second, 1),
            contract.PROGRESS_ETA_SECONDS: _rounded(self.eta_seconds, 1),
            contract.PROGRESS_CHECKPOINT_STEP: self.checkpoint_step,
            contract.PROGRESS_IN_PLACE_RESTARTS: self.restarts.number or None,
            contract.PROGRESS_IN_PLACE_CAUSE: self.restarts.cause,
            contract.PROGRESS_JOINED_REPLACEMENTS: self.restarts.joined_replacements or None,
            contract.PROGRESS_PHASE: self.phase,
            contract.PROGRESS_ALIVE: self.alive or None,
            contract.PROGRESS_METRICS: finite or None,
            contract.PROGRESS_HEADLINE: self.headline,
        }
        return contract.PROGRESS_PREFIX + json.dumps({k: v for k, v in fields.items() if v is not None})


def fits(name: str) -> bool:
    """Whether the operator accepts the name of a metric."""
    return re.fullmatch(contract.METRIC_NAME_PATTERN, name) is not None


def check_metrics(names: Iterable[str], headline: str | None = None) -> None:
    """Check what goes into progress lines.

    Raises:
        ValueError: a name has other characters than the operator accepts, or there are too many, or the headline does not fit.
    """
    names = list(names)
    for name in names:
        if not fits(name):
            raise ValueError(
                f"metric {name!r}: a name begins with a letter and has at most 24 characters of A-Z, a-z, 0-9 and _./-"
            )
    if len(names) > contract.MAX_METRICS:
        raise ValueError(
            f"{len(names)} metrics are reported: {', '.join(names)}; at most {contract.MAX_METRICS} are possible"
        )
    if headline is not None and not re.fullmatch(contract.HEADLINE_PATTERN, headline):
        raise ValueError(f"headline {headline!r}: it has at most 40 characters of A-Z, a-z, 0-9, space and _./:%+-")


def _rounded(value: float | None, digits: int) -> float | None:
    """JSON has no NaN and no infinity: they are left out."""
    return None if value is None or not math.isfinite(value) else round(value, digits)
