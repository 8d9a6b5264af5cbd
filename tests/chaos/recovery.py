"""How long a job took from a fault until it trained again, and where the time went. Pure.

The points come from three clocks that are one (all on one machine): news that arrive on a watch, marks that the ranks
leave, and the time of the fault itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from chaos.story import Story

#: The parts, in order: until the operator wrote the next attempt; until the old ranks had ended; until all new pods
#: existed; had a node; ran Python; had loaded torch; had met; had done a step.
PARTS = ("detect", "stop", "create", "schedule", "start", "load", "rendezvous", "first step")

#: Where the ranks start again in their pods: until all ranks run again, in their pods or in the pod of one that is replaced;
#: look for each other; have met; have done a step.
PARTS_IN_PLACE = ("start", "load", "rendezvous", "first step")


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


def recovery_in_place(marks: AllMarks, *, fault_at: float) -> dict[str, float] | None:
    """Seconds of each part, and "total"; None if the ranks have not started again in the first attempt."""
    ranks = [found for (attempt, _), found in marks.items() if attempt == 1]
    if not ranks or any(found.first("python", since=fault_at) is None for found in ranks):
        return None
    began = min((at for found in ranks if (at := found.first("begin", since=fault_at)) is not None), default=None)
    if began is None:
        return None
    points = [_last(found.first(name, since=fault_at) for found in ranks) for name in ("python", "rendezvous", "met")]
    points.append(_last(found.first("step", since=began) or found.first("begin", since=fault_at) for found in ranks))
    parts, before = {}, fault_at
    for name, reached in zip(PARTS_IN_PLACE, points, strict=True):
        at = before if reached is None else max(before, reached)
        parts[name] = round(at - before, 2)
        before = at
    return {**parts, "total": round(before - fault_at, 2)}


def recovery(story: Story, marks: AllMarks, *, fault_at: float, resumed_at: float | None) -> dict[str, float] | None:
    """Seconds of each part, and "total"; None if no attempt followed the fault.

    The time between the last pod of a suspended attempt and the order to resume is left out: nothing is to be done in it.
    """
    later = {attempt: at for attempt, at in story.attempts.items() if at >= fault_at and attempt > 1}
    if not later:
        return None
    detected = min(later.values())
    stopped = _stopped(story, max(later), default=detected)
    idle = 0.0 if resumed_at is None else max(0.0, resumed_at - stopped)
    beginning = [None if at is None else at - idle for at in _beginning(story, marks, max(later))]
    parts, before = {}, fault_at
    for name, reached in zip(PARTS, (detected, stopped, *beginning), strict=True):
        at = before if reached is None else max(before, reached)
        parts[name] = round(at - before, 2)
        before = at
    return {**parts, "total": round(before - fault_at, 2)}


def _stopped(story: Story, attempt: int, default: float) -> float:
    """When the last pod before the attempt was known to have ended, of those for which the attempt waited."""
    created = min((life.created for life in story.of(attempt).values()), default=default)
    ends = [life.stopped for (number, _), life in story.pods.items() if number < attempt]
    return max((end for end in ends if end is not None and end <= created), default=default)


def _beginning(story: Story, marks: AllMarks, attempt: int) -> tuple[float | None, ...]:
    """When all ranks of an attempt had come to each point from "create" on."""
    lives = story.of(attempt).values()
    ranks = [m for (number, _), m in marks.items() if number == attempt]
    return (
        _last(life.created for life in lives),
        _last(life.scheduled for life in lives),
        _last(rank.first("python") for rank in ranks),
        _last(rank.first("rendezvous") for rank in ranks),
        _last(rank.first("met") for rank in ranks),
        # An attempt that finds all steps done has none to do.
        _last(rank.first("step") or rank.first("begin") for rank in ranks),
    )


def _last(times: Iterable[float | None]) -> float | None:
    return max((at for at in times if at is not None), default=None)
