"""Each schedule here broke an invariant once; its name says what was wrong with the engine."""

from dataclasses import replace

import pytest

from simulation.program import Fate
from simulation.runner import run, traced
from simulation.schedule import Schedule, Step

FAILS_AT_ONCE = Fate(kind="fail", after_seconds=0.0)

#: What is left of a schedule that was shrunk: everything small and soon.
SHRUNK = Schedule(
    places=1,
    keep_attempts=0,
    own_grace_seconds=1,
    start_seconds=60,
    hang_seconds=60,
    finish_seconds=60,
    train_seconds=5.0,
)

SCHEDULES = {
    # With keepAttempts 0 the failed pod is deleted within a second of its end: whole seconds cannot tell which was first,
    # so the failure became "somebody deleted the pod", and its restart was not counted any more.
    "the deletion of outdated evidence was taken for somebody else's": Schedule(
        nodes=1, max_restarts=1, keep_attempts=0, fates=(FAILS_AT_ONCE,) * 4
    ),
    "the deletion of a stopped pod was taken for somebody else's": Schedule(
        nodes=1, keep_attempts=0, fates=(Fate(kind="stop", after_seconds=0.0),) * 4
    ),
    # A job that was deleted and applied again finds the Service of the one before it in the cache, which is not what it
    # has just created: the creation was struck out as seen, and sent again and again.
    "the Service of an earlier job was taken for the one just created": replace(
        SHRUNK,
        seed=542,
        nodes=1,
        max_restarts=0,
        fates=(Fate(kind="straggle", after_seconds=0.0),),
        steps=(
            Step(after_seconds=0.0, do="replace_job_while_deleting", pick=0),
            Step(after_seconds=0.1, do="crash", pick=0),
            Step(after_seconds=0.0, do="crash", pick=0),
            Step(after_seconds=0.0, do="lose_delete", pick=1),
        ),
    ),
    # A second writer's late creation makes a pod of an attempt whose evidence is outdated: one plan deleted it for both.
    "a straggler was deleted twice by one plan": replace(
        SHRUNK,
        seed=170048808,
        nodes=1,
        max_restarts=0,
        ignored_exit_code=1,
        second_operator_stays=True,
        fates=(FAILS_AT_ONCE,) * 3,
        steps=(
            *(Step(after_seconds=0.0, do="second_operator", pick=0),) * 3,
            Step(after_seconds=0.0, do="second_operator", pick=2),
        ),
    ),
    # Of two lists of one cache that ran at once, the one that ended first struck out the other's set of what had gone
    # meanwhile, since both were empty and so equal: what was gone could come back, and the second end raised.
    "of two lists at once the first to end forgot what had gone during the other": replace(
        SHRUNK,
        seed=51,
        nodes=3,
        max_restarts=1,
        fault_percent=3,
        fates=(Fate(kind="fail", after_seconds=5.0),),
        steps=(
            Step(after_seconds=1.0, do="replace_job_while_deleting", pick=0),
            Step(after_seconds=0.0, do="crash", pick=1),
            Step(after_seconds=0.1, do="replace_job_while_deleting", pick=0),
            Step(after_seconds=2.0, do="replace_job_while_deleting", pick=0),
            Step(after_seconds=2.0, do="outage", pick=0),
        ),
    ),
    # Of a gang that stopped with a checkpoint one node is lost before its pod, long ended and deleted by us, is gone: the
    # lost node made its end count as the cluster's, and our deletion as somebody else's.
    "the deletion of an ended pod on a node that is lost later was taken for somebody else's": replace(
        SHRUNK,
        seed=100,
        nodes=3,
        sidecar=True,
        max_restarts=0,
        sigterm="exit",
        fates=(Fate(kind="stop", after_seconds=0.0), Fate(kind="stop", after_seconds=5.0)),
        steps=(
            Step(after_seconds=0.0, do="node_comes_back", pick=0),
            Step(after_seconds=5.0, do="lose_node", pick=1),
            Step(after_seconds=5.0, do="node_comes_back", pick=0),
            Step(after_seconds=0.0, do="lose_node", pick=0),
        ),
    ),
    # Of two operators the one that sees late creates an evicted pod once more, and deletes it as the other has gone on:
    # the record "was evicted" became "somebody deleted it".
    "the deletion of a pod that an operator with an old view made was taken for somebody else's": replace(
        SHRUNK,
        seed=8738,
        nodes=1,
        num_machines=3,
        max_restarts=0,
        fault_percent=3,
        sigterm="exit",
        fates=(Fate(kind="fail", after_seconds=0.0),),
        steps=(
            Step(after_seconds=0.1, do="second_operator", pick=0),
            Step(after_seconds=0.1, do="evict_pod", pick=0),
            Step(after_seconds=0.0, do="second_operator", pick=0),
            Step(after_seconds=0.5, do="second_operator", pick=0),
        ),
    ),
    # A pod was deleted before it had started, and for as long as that took its job said that it was starting.
    "a pod that was being deleted was told to be starting": replace(
        SHRUNK,
        nodes=1,
        max_restarts=0,
        fates=(Fate(kind="fail", after_seconds=0.0),),
        steps=(
            *(Step(after_seconds=0.0, do="lose_node", pick=0),) * 2,
            Step(after_seconds=2.0, do="lose_node", pick=0),
            Step(after_seconds=0.0, do="jump_clock", pick=0),
        ),
    ),
    "a pod that was being deleted was told to run": replace(
        SHRUNK,
        nodes=1,
        max_restarts=0,
        fates=(Fate(kind="fail", after_seconds=0.0),),
        steps=(
            Step(after_seconds=0.0, do="lose_node", pick=1),
            *(Step(after_seconds=0.5, do="lose_node", pick=0),) * 2,
            Step(after_seconds=0.0, do="jump_clock", pick=0),
        ),
    ),
    # The clock was set back within the moment that an end waits for a better explanation, which then took an hour.
    "an end waited for its explanation for as long as the clock was set back": replace(
        SHRUNK,
        seed=388,
        nodes=3,
        keep_attempts=1,
        max_restarts=0,
        fault_percent=3,
        fates=(Fate(kind="stop", after_seconds=30.0), Fate(kind="fail", after_seconds=1.0)),
        steps=(
            Step(after_seconds=60.0, do="node_comes_back", pick=0),
            Step(after_seconds=2.0, do="lose_node", pick=0),
            Step(after_seconds=0.0, do="strangers_service", pick=0),
            Step(after_seconds=0.5, do="jump_clock", pick=0),
        ),
    ),
    # Survivors that we deleted were asked to go before the failure was recorded, by clocks that are two seconds apart, or of two operators an hour.
    "our own deletion was somebody else's where the API server's clock is behind": replace(
        SHRUNK,
        max_restarts=3,
        fates=(FAILS_AT_ONCE, FAILS_AT_ONCE, Fate(kind="stop", after_seconds=0.0)),
        steps=(
            *(Step(after_seconds=0.0, do="kill_rank", pick=0),) * 3,
            Step(after_seconds=0.0, do="jump_clock", pick=4),
        ),
    ),
    # And, told apart by the attempt alone, where another operator's record came later than its deletions.
    "another operator's deletion was somebody else's until its record was known": replace(
        SHRUNK,
        nodes=3,
        max_restarts=0,
        sigterm="exit",
        fates=(Fate(kind="stop", after_seconds=1.0),),
        steps=(
            Step(after_seconds=1.0, do="second_operator", pick=0),
            *(Step(after_seconds=0.0, do="second_operator", pick=0),) * 2,
            Step(after_seconds=2.0, do="second_operator", pick=0),
        ),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_that_found_a_bug_keeps_every_invariant(name: str) -> None:
    run(SCHEDULES[name])


def test_a_schedule_goes_the_same_way_each_time() -> None:
    schedule = Schedule(
        seed=3,
        nodes=3,
        fault_percent=15,
        fates=(FAILS_AT_ONCE, FAILS_AT_ONCE),
        steps=(Step(after_seconds=0.1, do="crash", pick=9), Step(after_seconds=1.0, do="second_operator", pick=2)),
    )
    assert traced(schedule) == traced(schedule)
