"""The progress of training, from rank 0's log.

The log is untrusted text: any image may print it, a line may be cut, and the body of a log request can be an error with
status 200. So each line is checked by itself, and what does not fit is ignored: a field, or the line if its step cannot be read. The work is bounded: lines are found
without a regular expression, and only the last few short ones are parsed.
"""

import itertools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddpjob_operator.api.names import contract
from ddpjob_operator.api.status import Progress
from ddpjob_operator.core.times import duration
from ddpjob_operator.core.untrusted import printable

#: How many lines with the prefix are tried, from the last one back. That bounds the time for a megabyte that was made to be
#: slow to 2.6 ms (measured on one core of a Xeon).
MAX_LINES_TRIED = 50
#: The most restarts that a job can allow. The status records the time of each.
MAX_IN_PLACE_RESTARTS = 1000
_DECODER = json.JSONDecoder()
_MAX_INT = 2**53  # what every JSON reader holds exactly
_MAX_FLOAT = 1e300  # rounding to fewer digits keeps it finite


@dataclass(frozen=True, slots=True)
class _Number:
    """What the number of an optional field may be."""

    most: float = _MAX_INT
    least: float = 0
    is_whole: bool = True


_NUMBERS = {
    contract.PROGRESS_TOTAL_STEPS: _Number(),
    contract.PROGRESS_EPOCH: _Number(),
    contract.PROGRESS_LOSS: _Number(_MAX_FLOAT, -_MAX_FLOAT, is_whole=False),
    contract.PROGRESS_SAMPLES_PER_SECOND: _Number(_MAX_FLOAT, is_whole=False),
    contract.PROGRESS_ETA_SECONDS: _Number(1e10, is_whole=False),
    contract.PROGRESS_CHECKPOINT_STEP: _Number(),
    contract.PROGRESS_IN_PLACE_RESTARTS: _Number(MAX_IN_PLACE_RESTARTS),
    contract.PROGRESS_JOINED_REPLACEMENTS: _Number(),
    contract.PROGRESS_ALIVE: _Number(),
}
_PHASE = r"[\w -]{0,32}"


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
        line = log_text[start : start + contract.PROGRESS_MAX_BYTES].splitlines()[0]
        if progress := _parsed(line.removeprefix(contract.PROGRESS_PREFIX)):
            return progress
    return None


def position(progress: Progress) -> tuple[object, ...]:
    """What changes while a training makes progress, or a phase without steps shows signs of life."""
    return progress.step, progress.phase, progress.alive


def _parsed(text: str) -> Progress | None:
    """The progress of a line, with what can be read of it. Ranks share one output, so other text may follow the object."""
    try:
        values, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    step = _number(values.get(contract.PROGRESS_STEP), _Number()) if isinstance(values, Mapping) else None
    if step is None or len(text[:end].encode()) > contract.PROGRESS_MAX_BYTES - len(contract.PROGRESS_PREFIX):
        return None
    numbers = {name: _number(values.get(name), allowed) for name, allowed in _NUMBERS.items()}
    eta = numbers.pop(contract.PROGRESS_ETA_SECONDS)
    metrics = _valid_metrics(values.get(contract.PROGRESS_METRICS))
    return Progress.model_validate(
        {
            **numbers,
            "step": step,
            "eta": None if eta is None else duration(eta),
            "etaSeconds": None if eta is None else round(eta),
            "inPlaceCause": _if_matches(contract.IN_PLACE_CAUSE_PATTERN, values.get(contract.PROGRESS_IN_PLACE_CAUSE)),
            "phase": _if_matches(_PHASE, values.get(contract.PROGRESS_PHASE)),
            "metrics": metrics or None,
            "headline": _if_matches(contract.HEADLINE_PATTERN, values.get(contract.PROGRESS_HEADLINE))
            or next((f"{name} {value:g}" for name, value in metrics.items()), None),
            "unreadable": _unreadable(values, numbers, eta),
        }
    )


def _number(found: object, allowed: _Number) -> int | float | None:
    """The number if it is allowed; of an epoch such as 0.31 the whole part. Floats have four digits."""
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    if not allowed.least <= found <= allowed.most:  # which is false for NaN
        return None
    return int(found) if allowed.is_whole else _four_digits(found)


def _unreadable(values: Mapping[str, Any], numbers: Mapping[str, object], eta: object) -> str | None:
    """The first field that cannot be read, with what it holds; the loss first, since people want to know."""
    known = {**numbers, contract.PROGRESS_ETA_SECONDS: eta}
    for name in (contract.PROGRESS_LOSS, *known):
        found = values.get(name)
        if found is None or known[name] is not None:
            continue
        if isinstance(found, float) and not math.isfinite(found):
            return f"{name} is not finite"
        return printable(f"{name} is {str(found)[:40]!r}, which is not a number that it may be")
    return None


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


def _four_digits(value: float) -> float:
    """The value with four significant digits: enough to read, and few enough that noise writes no status."""
    return float(f"{value:.3e}")
