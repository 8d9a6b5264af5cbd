"""Runs many schedules and counts what happened in them."""

import os
from collections import Counter
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis.internal.conjecture.providers import HypothesisProvider

from simulation.invariants.checker import Violation
from simulation.runner import run, traced
from simulation.schedule import Schedule, schedules

#: Schedules of each focus on each change, 8 s of one CPU. `make soak` runs as many as one likes, 20,000 of them at night.
SCHEDULES_PER_FOCUS = 100
#: Within so many schedules a mutation must be noticed.
SCHEDULES_PER_MUTATION = 340
FIRST_SEED = 2

#: What schedules are for. Of each of these, at least one in so many must have it.
RARER_THAN = {
    "restart": 2,
    "crash": 4,
    "ended Succeeded": 5,
    "ended Failed": 10,
    "job deleted": 12,
    "stated wait": 12,
    "suspend": 20,
    "second operator started": 8,
    "node lost": 10,
    "clock jump": 40,
    "outage": 25,
    "forget_history": 15,
    "lose_delete": 20,
    "freeze_watches": 20,
    "faults": 8,
    "replace_job": 15,
    "straggler": 250,
    "force deletion on a lost node": 150,
}


def explore(num_schedules: int, first_seed: int, focus: str = "everything", *, shrinks: bool = True) -> Counter[str]:
    """In how many of so many schedules each thing happened. The same seed gives the same schedules.

    Raises Violation for a schedule that breaks an invariant, after having made it as small as it can.
    """
    seen: Counter[str] = Counter()

    @seed(first_seed)
    @settings(
        max_examples=num_schedules,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink) if shrinks else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=shrinks,
    )
    @given(schedules(focus))
    def holds(schedule: Schedule) -> None:
        try:
            outcome = run(schedule)
        except Violation:
            if shrinks:
                note(traced(schedule))
            raise
        seen["schedules"] += 1
        seen.update(key for key, count in outcome.counts.items() if count)

    # It would mix in constants of whatever modules are loaded: each change of the code, and each test that ran before,
    # would make other schedules of the same seed.
    with patch.object(HypothesisProvider, "_maybe_draw_constant", lambda *_, **__: None):
        holds()
    return seen


def table(seen: Counter[str]) -> str:
    """The counts as text."""
    return os.linesep.join(f"{count:7}  {what}" for what, count in seen.most_common())


def too_rare(seen: Counter[str]) -> list[str]:
    """What too few of these schedules had for a claim that it was tested."""
    return [what for what, one_in in RARER_THAN.items() if seen[what] * one_in < seen["schedules"]]
