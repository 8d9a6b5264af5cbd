"""Where training stands, from rank 0's log.

The log is untrusted text: any image may print it, a line may be cut, and the body of a log request can be an error with
status 200. So each line is checked on its own and whatever does not fit is no progress.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from ddpjob_operator.api.names import contract
from ddpjob_operator.api.status import Progress
from ddpjob_operator.core.times import duration

#: Before it may stand what launchers put there (`[default0]:`), or a progress bar without an end of line of its own.
_LINE = re.compile(rf"{re.escape(contract.PROGRESS_PREFIX)}(\{{.*\}})\s*$")
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
    """The last valid progress line of a piece of log; None without one."""
    for line in reversed(log_text.splitlines()):
        match = _LINE.search(line)
        if match and len(match[0].encode()) <= contract.PROGRESS_MAX_BYTES and (progress := _parsed(match[1])):
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
