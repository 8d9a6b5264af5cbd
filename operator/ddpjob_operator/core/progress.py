"""The progress of training, from rank 0's log.

The log is untrusted text: any image may print it, a line may be cut, and the body of a log request can be an error with
status 200. So each line is checked by itself, and what does not fit is ignored. The work is bounded: lines are found
without a regular expression, and only the last few short ones are parsed.
"""

import itertools
import json
import re
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
#: The most restarts that a job can allow. The status records the time of each.
MAX_IN_PLACE_RESTARTS = 1000
_MAX_INT = 2**53  # what every JSON reader holds exactly
_MAX_FLOAT = 1e300  # rounding to fewer digits keeps it finite


class _Line(BaseModel):
    """The JSON object of a progress line; further keys are allowed and dropped."""

    model_config = ConfigDict(alias_generator=to_camel, strict=True, allow_inf_nan=False)

    step: int = Field(ge=0, le=_MAX_INT)
    total_steps: int | None = Field(default=None, ge=0, le=_MAX_INT)
    epoch: int | None = Field(default=None, ge=0, le=_MAX_INT)
    loss: float | None = Field(default=None, ge=-_MAX_FLOAT, le=_MAX_FLOAT)
    samples_per_second: float | None = Field(default=None, ge=0, le=_MAX_FLOAT)
    eta_seconds: float | None = Field(default=None, ge=0, le=1e10)
    checkpoint_step: int | None = Field(default=None, ge=0, le=_MAX_INT)
    in_place_restarts: int | None = Field(default=None, ge=0, le=MAX_IN_PLACE_RESTARTS)
    joined_replacements: int | None = Field(default=None, ge=0, le=_MAX_INT)
    phase: str | None = Field(default=None, max_length=32, pattern=r"^[\w -]*$")
    # Of any type here: without them the rest of the line is still of use.
    in_place_cause: Any = None
    metrics: Any = None
    headline: Any = None


def latest_progress(log_text: str) -> Progress | None:
    """The last valid progress line of a piece of log; None without one.

    The prefix may follow what launchers print before it (`[default0]:`), or a progress bar that does not end
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
    metrics = _valid_metrics(line.metrics)
    return Progress(
        step=line.step,
        total_steps=line.total_steps,
        epoch=line.epoch,
        loss=_rounded(line.loss),
        samples_per_second=_rounded(line.samples_per_second),
        eta=None if line.eta_seconds is None else duration(line.eta_seconds),
        eta_seconds=None if line.eta_seconds is None else round(line.eta_seconds),
        checkpoint_step=line.checkpoint_step,
        in_place_restarts=line.in_place_restarts,
        in_place_cause=_if_matches(contract.IN_PLACE_CAUSE_PATTERN, line.in_place_cause),
        joined_replacements=line.joined_replacements,
        phase=line.phase,
        metrics=metrics or None,
        headline=_if_matches(contract.HEADLINE_PATTERN, line.headline)
        or next((f"{name} {value:g}" for name, value in metrics.items()), None),
    )


def _valid_metrics(found: object) -> dict[str, float]:
    """The first MAX_METRICS metrics with a valid name and a finite value, in the order of the line."""
    if not isinstance(found, Mapping):
        return {}
    valid = {
        name: _four_digits(value)
        for name, value in found.items()
        if re.fullmatch(contract.METRIC_NAME_PATTERN, name)
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= _MAX_FLOAT  # which is false for NaN
    }
    return dict(itertools.islice(valid.items(), contract.MAX_METRICS))


def _if_matches(pattern: str, found: object) -> str | None:
    return found if isinstance(found, str) and re.fullmatch(pattern, found) else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else _four_digits(value)


def _four_digits(value: float) -> float:
    """The value with four significant digits: enough to read, and few enough that noise writes no status."""
    return float(f"{value:.3e}")
