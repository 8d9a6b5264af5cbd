"""The curves of a training, read from the log of rank 0. Pure.

The lines for people hold each value at its own step. Progress lines repeat the latest values at later steps, so they count only
for metrics that no other line has, such as those of programs that print progress lines alone.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ddpjob_operator.api.names import contract
from ddpjob_operator.core.progress import latest_progress

if TYPE_CHECKING:
    from ddpjob.client import LogLine

#: "after 345 steps: accuracy 99.72 % (359 held-out samples)"
#: "step 63/300 loss 0.31 accuracy 97.5" of a session, "epoch 0 step 63/300 loss 0.31 data 1.2 ms" of the built-in trainer.
_STEP = re.compile(
    r"(?:epoch \d{1,15} )?step (\d{1,15})/\d{1,15}((?: [A-Za-z][\w./-]{0,23} -?\d[\d.]*(?:e[+-]?\d{1,3})?)+)(?= data |$)"
)
_ACCURACY = re.compile(r"after (\d{1,15}) steps: accuracy (\d{1,3}(?:\.\d{1,6})?) %")
#: Metrics with a title other than their name.
_TITLES: Mapping[str, str] = {"accuracy": "accuracy in %", "throughput": "samples per second"}
#: Larger numbers cannot be drawn: the difference of two may be infinite.
_MOST = 1e100
#: These have a new value in each line, named metrics the latest one: a curve keeps the first and the last of equal values.
_FIRST = ("loss", "throughput")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of a metric."""

    attempt: int
    step: int
    value: float
    time: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """All metrics of one job, each in the order of its log."""

    points: Mapping[str, Sequence[Point]]
    restarts: Sequence[int] = field(default=())
    """The step at which each attempt after the first one began."""

    @property
    def metrics(self) -> list[str]:
        """The metrics that have values."""
        return [name for name, points in self.points.items() if points]


def title_of(metric: str) -> str:
    """The title of a metric's curve."""
    return _TITLES.get(metric, metric)


def ticks(steps: Iterable[int]) -> list[int]:
    """Whole steps for the marks of an axis, evenly spaced from the first to the last; at most five."""
    seen = sorted(set(steps))
    first, last = seen[0], seen[-1]
    return sorted({first + (last - first) * number // 4 for number in range(5)})


def read_curves(lines: "Iterable[LogLine]") -> Curves:
    """The curves in the log of rank 0 of all attempts, oldest first."""
    points: dict[str, list[Point]] = {name: [] for name in _FIRST}
    restarts: list[int] = []
    exact: set[str] = set()
    attempt = None
    for line in lines:
        found = _values(line.text)
        if found is None:
            continue
        step, values, is_exact = found
        values = {name: v for name, v in values.items() if (is_exact or name not in exact) and abs(v) < _MOST}
        exact.update(values if is_exact else ())
        if attempt is not None and line.attempt != attempt:
            restarts.append(step)
        attempt = line.attempt
        for name, value in values.items():
            if name not in points and len(points) >= len(_FIRST) + contract.MAX_METRICS:
                continue  # a program that prints new names without end
            curve = points.setdefault(name, [])
            repeats = [(point.attempt, point.value) == (attempt, value) for point in curve[-2:]]
            if repeats == [True, True] and name not in _FIRST:
                curve.pop()  # of equal values, the first and the last are enough
            curve.append(Point(attempt=line.attempt, step=step, value=value, time=line.time))
    return Curves(points=points, restarts=tuple(restarts))


def _values(text: str) -> tuple[int, dict[str, float], bool] | None:
    """The step, the values, and whether progress lines say nothing more of these metrics."""
    if match := _ACCURACY.search(text):
        return int(match[1]), {"accuracy": float(match[2])}, False
    if match := _STEP.search(text):
        words = match[2].split()
        try:
            return (
                int(match[1]),
                {name: float(value) for name, value in zip(words[::2], words[1::2], strict=True)},
                True,
            )
        except ValueError:  # a line of another program
            return None
    progress = latest_progress(text)
    if progress is None:
        return None
    named = {**(progress.metrics or {}), "loss": progress.loss, "throughput": progress.samples_per_second}
    return progress.step, {name: value for name, value in named.items() if value is not None}, False


def as_csv(curves: Curves) -> str:
    """One row for each value: metric, attempt, step, value, time."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["metric", "attempt", "step", "value", "time"])
    for name in curves.metrics:
        writer.writerows((name, point.attempt, point.step, point.value, point.time) for point in curves.points[name])
    return text.getvalue()
