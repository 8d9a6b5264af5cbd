"""The curves of a training, read from the log of rank 0: progress lines, and the accuracy lines of the built-in trainer. Pure."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ddpjob_operator.core.progress import latest_progress

if TYPE_CHECKING:
    from ddpjob.client import LogLine

#: "after 345 steps: accuracy 99.72 % (358 of 359 held-out samples)"
_ACCURACY = re.compile(r"after (\d{1,15}) steps: accuracy (\d{1,3}(?:\.\d{1,6})?) %")
#: Metrics and their titles, in the order in which they are shown.
TITLES: Mapping[str, str] = {"loss": "loss", "accuracy": "accuracy in %", "throughput": "samples per second"}


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
        return [name for name in TITLES if self.points.get(name)]


def read_curves(lines: "Iterable[LogLine]") -> Curves:
    """The curves in the log of rank 0 of all attempts, oldest first."""
    points: dict[str, list[Point]] = {name: [] for name in TITLES}
    restarts: list[int] = []
    attempt = None
    for line in lines:
        found = _values(line.text)
        if found is None:
            continue
        step, values = found
        if attempt is not None and line.attempt != attempt:
            restarts.append(step)
        attempt = line.attempt
        for name, value in values.items():
            points[name].append(Point(attempt=line.attempt, step=step, value=value, time=line.time))
    return Curves(points=points, restarts=tuple(restarts))


def _values(text: str) -> tuple[int, dict[str, float]] | None:
    if match := _ACCURACY.search(text):
        return int(match[1]), {"accuracy": float(match[2])}
    progress = latest_progress(text)
    if progress is None:
        return None
    named = {"loss": progress.loss, "throughput": progress.samples_per_second}
    return progress.step, {name: value for name, value in named.items() if value is not None}


def as_csv(curves: Curves) -> str:
    """One row for each value: metric, attempt, step, value, time."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["metric", "attempt", "step", "value", "time"])
    for name in curves.metrics:
        writer.writerows((name, point.attempt, point.step, point.value, point.time) for point in curves.points[name])
    return text.getvalue()
