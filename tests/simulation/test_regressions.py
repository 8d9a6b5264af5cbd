"""Each schedule here broke an invariant once; its name says what was wrong with the engine."""

from typing import Any

import pytest

from simulation.containers import Fate
from simulation.runner import run, traced
from simulation.schedule import Schedule, Step


def fate(kind: str, after_seconds: float) -> Fate:
    return Fate(kind=kind, after_seconds=after_seconds)


def steps(text: str) -> tuple[Step, ...]:
    """`0.1 crash 3; 0 suspend`: for each step the seconds after the one before, its name and its pick, which is 0 if absent."""
    words = [step.split() for step in text.split(";")]
    return tuple(Step(after_seconds=float(w[0]), do=w[1], pick=int(w[2]) if len(w) > 2 else 0) for w in words)


FAILS_AT_ONCE = fate("fail", 0.0)
#: A job whose lost pods are replaced while the others wait.
REPLACES_PODS: dict[str, Any] = {"nodes": 2, "trainer": True, "in_place": True}


def shrunk(disturbances: str, settings: str = "", **more: Any) -> Schedule:
    """What is left of a schedule that was shrunk: everything small and soon, and a rank that fails at once.

    `settings` are `seed=3 fates=stop@30,fail@1`: other fields of the schedule, and fates with the seconds of each.
    """
    small = {"nodes": 1, "places": 1, "max_restarts": 0, "keep_attempts": 0, "own_grace_seconds": 1}
    small |= {"start_seconds": 60, "hang_seconds": 60, "finish_seconds": 60, "train_seconds": 5}
    given = {"fates": "fail@0", **dict(setting.split("=") for setting in settings.split())}
    fates = [fate.split("@") for fate in given.pop("fates").split(",") if fate]
    return Schedule(
        **small | more | {name: int(value) if value.isdigit() else value for name, value in given.items()},
        fates=tuple(Fate(kind=kind, after_seconds=float(seconds)) for kind, seconds in fates),
        steps=steps(disturbances),
    )


SCHEDULES = {
    # With keepAttempts 0 the failed pod is deleted within a second of its end: whole seconds do not show which was first,
    # so the failure became "somebody deleted the pod", and its restart was not counted any more.
    "outdated evidence that the operator deleted counted as deleted by somebody else": Schedule(
        nodes=1, max_restarts=1, keep_attempts=0, fates=(FAILS_AT_ONCE,) * 4
    ),
    "a stopped pod that the operator deleted counted as deleted by somebody else": Schedule(
        nodes=1, keep_attempts=0, fates=(fate("stop", 0.0),) * 4
    ),
    # A job that was deleted and applied again finds the Service of the one before it in the cache, which is not the
    # one it has just created: the creation counted as seen, and was sent again and again.
    "the Service of an earlier job counted as the one just created": shrunk(
        "0 replace_job_while_deleting; 0.1 crash; 0 crash; 0 lose_delete 1", "seed=542 fates=straggle@0"
    ),
    # A second writer's late creation makes a pod of an attempt whose evidence is outdated: one plan deleted it for both.
    "a straggler was deleted twice by one plan": shrunk(
        "0 second_operator; 0 second_operator; 0 second_operator; 0 second_operator 2",
        "seed=170048808 ignored_exit_code=1 second_operator_stays=1 fates=fail@0,fail@0,fail@0",
    ),
    # Of two lists of one cache that ran at once, the one that ended first cleared the other's set of what had gone
    # meanwhile, since both were empty and so equal: what was gone could come back, and the second end raised.
    "of two lists at once the first to end forgot what had gone during the other": shrunk(
        "1 replace_job_while_deleting; 0 crash 1; 0.1 replace_job_while_deleting; 2 replace_job_while_deleting; 2 outage",
        "seed=51 nodes=3 max_restarts=1 fault_percent=3 fates=fail@5",
    ),
    # Of a gang that stopped with a checkpoint one node is lost before its pod, long ended and deleted by us, is gone: the
    # lost node made its end count as the cluster's, and our deletion as somebody else's.
    "an ended pod that the operator deleted on a node that was lost later counted as deleted by somebody else": shrunk(
        "0 node_comes_back; 5 lose_node 1; 5 node_comes_back; 0 lose_node",
        "seed=100 nodes=3 sidecar=1 fates=stop@0,stop@5",
    ),
    # Of two operators the one that sees late creates an evicted pod once more, and deletes it as the other has gone on:
    # the record "was evicted" became "somebody deleted it".
    "a pod that an operator with an old view created and deleted counted as deleted by somebody else": shrunk(
        "0.1 second_operator; 0.1 evict_pod; 0 second_operator; 0.5 second_operator", "seed=8738 fault_percent=3"
    ),
    # Of two operators one creates a pod again that somebody deleted, and the other says that it runs before the first has
    # seen it: the first remembered the deleted one.
    "a pod that was created again counted as deleted while the watch had not shown it": shrunk(
        "0.02 stop_second_operator; 2 delete_pod 1; 5 second_operator; 0.5 second_operator",
        "seed=24671448 ignored_exit_code=1 fault_percent=3",
    ),
    # A pod was deleted before it had started, and for as long as that took its job said that it was starting.
    "a pod that was being deleted was reported as starting": shrunk(
        "0 lose_node; 0 lose_node; 2 lose_node; 0 jump_clock"
    ),
    "a pod that was being deleted was reported as running": shrunk(
        "0 lose_node 1; 0.5 lose_node; 0.5 lose_node; 0 jump_clock"
    ),
    # The clock was set back within the moment that an end waits for a better explanation, which then took an hour.
    "an end waited for its explanation for as long as the clock was set back": shrunk(
        "60 node_comes_back; 2 lose_node; 0 strangers_service; 0.5 jump_clock",
        "seed=388 nodes=3 keep_attempts=1 fault_percent=3 fates=stop@30,fail@1",
    ),
    # Survivors that we deleted were asked to go before the failure was recorded, by clocks that are two seconds apart.
    "a deletion by the operator counted as somebody else's where the API server's clock is behind": shrunk(
        "0 kill_rank; 0 kill_rank; 0 kill_rank; 0 jump_clock 4", "nodes=2 max_restarts=3 fates=fail@0,fail@0,stop@0"
    ),
    # The same with two operators: the record of one came later than its deletions.
    "a deletion by another operator counted as somebody else's until its record was known": shrunk(
        "1 second_operator; 0 second_operator; 0 second_operator; 2 second_operator", "nodes=3 fates=stop@1"
    ),
    # The same with operators whose clocks differ: by that of the one that saw it the deletion came before the other's record.
    "a deletion by another operator with another clock counted as somebody else's": shrunk(
        "0 crash; 0 second_operator; 0.1 crash; 0.5 crash; 0 lose_node; 0.1 jump_clock",
        "seed=1 nodes=3 max_restarts=1 second_operator_stays=1 fates=fail@1",
    ),
    # A replaced pod on a lost node, which we had deleted, explained the end of the attempt that it was replaced in.
    "a pod that was replaced earlier counted as the cause of the end of its attempt": shrunk(
        "0.5 crash 7; 0 kill_rank; 1 lose_node; 0 evict_for_memory 1",
        "seed=4294967296 max_restarts=3 sigterm=save fates=fail@1",
        **REPLACES_PODS,
    ),
    # Its pod was lost in the seconds between the first end of a rank with exit code 0 and the last.
    "a new pod waited for ranks that had succeeded": shrunk(
        "6.7 kill_rank 1",
        "seed=3 max_restarts=10 own_grace_seconds=30 start_seconds=300 finish_seconds=3600 fates=",
        **REPLACES_PODS,
    ),
    # The restart in place before the loss was reported after it, as the only one, and the new pod had not joined.
    "a restart in place counted as the one with a new pod": shrunk(
        "20 restart_ranks; 3 kill_rank 1; 4 kill_rank",
        "seed=1 max_restarts=10 train_seconds=600 reads_progress=1 fates=",
        **REPLACES_PODS,
    ),
    # The deletion of a job whose time to live had passed was answered with a conflict, which counted as done.
    "a job that could not be deleted at first was forgotten": shrunk(
        "0 fill_nodes; 0.02 resize",
        "seed=3 nodes=3 trainer=1 ttl_seconds=0 ignored_exit_code=1 start_seconds=60 hang_seconds=900 full_size_seconds=20 sidecar=1 fault_percent=3 fates=fail@400,fail@400,fail@400,stop@0,fail@0",
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_that_found_a_bug_keeps_every_invariant(name: str) -> None:
    run(SCHEDULES[name])


def test_a_schedule_has_the_same_trace_each_time() -> None:
    schedule = Schedule(
        seed=3,
        nodes=3,
        fault_percent=15,
        fates=(FAILS_AT_ONCE, FAILS_AT_ONCE),
        steps=steps("0.1 crash 9; 1 second_operator 2"),
    )
    assert traced(schedule) == traced(schedule)
