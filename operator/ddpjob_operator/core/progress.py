"""The progress of training, from rank 0's log.

The log is untrusted text: any image may print it, a line may be cut, and the body of a log request can be an error with
status 200. So each line is checked by itself, and what does not fit is ignored. The work is bounded: lines are found
without a regular expression, and only the last few short ones are parsed.
"""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from ddpjob_operator.api.names import contract
from ddpjob_operator.api.status import Progress
from ddpjob_operator.core.times import duration

#: How many lines with the prefix are tried, from the last one back. That bounds the time for a megabyte that was made to be
#: slow to 2.6 ms (measured on one core of a Xeon).
MAX_LINES_TRIED = 50
_MAX_INT = 2**53  # what every JSON reader holds exactly


class _Line(BaseModel):
    """The JSON object of a progress line; further keys are allowed and dropped."""

    model_config = ConfigDict(alias_generator=to_camel, strict=True, allow_inf_nan=False)

    step: int = Field(ge=0, le=_MAX_INT)
    total_steps: int | None = Field(default=None, ge=0, le=_MAX_INT)
    epoch: int | None = Field(default=None, ge=0, le=_MAX_INT)
    loss: float | None = Field(default=None, ge=-1e300, le=1e300)
    samples_per_second: float | None = Field(default=None, ge=0, le=1e300)
    eta_seconds: float | None = Field(default=None, ge=0, le=1e10)
    checkpoint_step: int | None = Field(default=None, ge=0, le=_MAX_INT)
    phase: str | None = Field(default=None, max_length=32, pattern=r"^[\w -]*$")


def latest_progress(log_text: str) -> Progress | None:
    """The last valid progress line of a piece of log; None without one.

    The prefix may stand behind what launchers print before it (`[default0]:`), or behind a progress bar that does not end
    its line.
    """
    start = len(log_text)
    for _ in range(MAX_LINES_TRIED):
        start = log_text.rfind(contract.PROGRESS_PREFIX, 0, start)
        if start < 0:
            return None
        line = log_text[start : start + contract.PROGRESS_MAX_BYTES + 1].splitlines()[0]
        fits = len(line.encode()) <= contract.PROGRESS_MAX_BYTES
        if fits and (progress := _parsed(line.removeprefix(contract.PROGRESS_PREFIX))):
            return progress
    return None


def _parsed(text: str) -> Progress | None:
    try:
        values: Mapping[str, Any] = json.loads(text)
        line = _Line.model_validate(values)
    except (ValueError, ValidationError, RecursionError):
        return None
    return Progress(
        step=line.step,
        total_steps=line.total_steps,
        epoch=line.epoch,
        loss=_rounded(line.loss),
        samples_per_second=_rounded(line.samples_per_second),
        eta=None if line.eta_seconds is None else duration(line.eta_seconds),
        checkpoint_step=line.checkpoint_step,
        phase=line.phase,
    )


def _rounded(value: float | None) -> float | None:
    """Four significant digits: enough to read, and few enough that noise writes no status."""
    if value is None or value == 0:
        return value
    return float(f"{value:.3e}")
