"""What the ranks of a job leave behind: when each reached which point. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What one rank of one attempt left behind: a name and a time for each point it reached, in order."""

    points: Sequence[tuple[str, float]] = ()

    def first(self, name: str, *, since: float = 0.0) -> float | None:
        """When it first reached the point whose name begins with this, at that time or later."""
        return next((at for point, at in self.points if point.split()[0] == name and at >= since), None)

    def step_done(self) -> int | None:
        """The last step that it did, or had behind it when it began."""
        steps = [int(point.split()[1]) for point, _ in self.points if point.startswith(("begin ", "step "))]
        return max(steps, default=None)

    @classmethod
    def parse(cls, text: str) -> Marks:
        """From the lines that a rank wrote; a line that is being written is left out."""
        lines = [line.rpartition(" ") for line in text.split("\n")[:-1]]
        return cls(points=tuple((name, float(at)) for name, _, at in lines))


AllMarks = Mapping[tuple[int, int], Marks]


def steps_lost(marks: AllMarks) -> int:
    """Optimizer steps that were done more than once, over all attempts and all starts of rank 0 in each."""
    lost, done = 0, 0
    for attempt in sorted(attempt for attempt, rank in marks if rank == 0):
        for point, _ in marks[attempt, 0].points:
            if point.startswith("begin "):
                lost += max(0, done - int(point.split()[1]))
                done = int(point.split()[1])
            elif point.startswith("step "):
                done = int(point.split()[1])
    return lost


def seconds_to_train(marks: AllMarks, since: float) -> float | None:
    """From then on until every rank of the last attempt has done a step again; None if none has begun again."""
    last = max((attempt for attempt, _ in marks), default=0)
    ranks = [found for (attempt, _), found in marks.items() if attempt == last]
    begun = [at for rank in ranks if (at := rank.first("begin", since=since)) is not None]
    # An attempt that finds all steps done has none to do.
    ends = [rank.first("step", since=min(begun)) or rank.first("begin", since=since) for rank in ranks if begun]
    return max((at for at in ends if at is not None), default=since) - since if begun else None
