"""A job that fails for good keeps every pod whose program ran, with its log: survivors are stopped, not deleted."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from ddpjob_operator.api.names import Phase, Reason
from ddpjob_operator.core.actions import DeleteJob, LowerPodDeadline, ReadNode
from ddpjob_operator.core.model import NO_LOG, Observed
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.stopping import KEPT_SECONDS
from support.builders import (
    NOW,
    broken,
    crashed,
    deleted,
    ended,
    job,
    observed,
    pending,
    pod,
    program,
    reconciled,
    running,
)

#: The pods' own grace: Kubernetes' default.
GRACE_SECONDS = 30.0
TRAINER = job(nodes=2)


def rank_1_crashed(**restart: object) -> Observed:
    """Rank 1 has ended with code 7, rank 0 runs."""
    of = program(nodes=2, restart=restart)
    return broken(of, crashed(of, 1, code=7))


def crashed_in_the_second_attempt() -> Observed:
    """The kept pods of attempt 1 still exist."""
    seen = reconciled(rank_1_crashed(maxRestarts=1))
    of, kept = seen.job, seen.pods[1:]
    second = reconciled(replace(seen, pods=(*kept, pod(of, 0, 2), pod(of, 1, 2))))
    return replace(second, pods=(*kept, pod(of, 0, 2), crashed(of, 1, 2, code=7)))


def not_finished_in_time() -> Observed:
    of = program(nodes=2, restart={"maxRestarts": 0}, deadlines={"finishSeconds": 60})
    return reconciled(broken(of, ended(of, 1, ended_seen=NOW - 60)), NOW - 50)


FAILURES: dict[str, Callable[[], Observed]] = {
    "the budget of restarts is used up": lambda: rank_1_crashed(maxRestarts=0),
    "the budget is used up in the second attempt": crashed_in_the_second_attempt,
    "a restart rule requests Fail": lambda: rank_1_crashed(maxRestarts=3, rules=[{"exitCodes": [7], "action": "Fail"}]),
    "another attempt would end in the same way": lambda: broken(
        TRAINER, ended(TRAINER, 1, code=2, message="rank 1\nbad")
    ),
    "deadlines.activeSeconds has passed": lambda: running(program(nodes=2, deadlines={"activeSeconds": 60}), NOW - 60),
    "deadlines.finishSeconds has passed": not_finished_in_time,
}


@pytest.fixture(params=FAILURES.values(), ids=list(FAILURES))
def failed(request) -> Observed:
    """A job after the status with its failure was written."""
    seen = reconciled(request.param())
    assert seen.job.status.phase == Phase.FAILED
    return seen


def test_running_pods_are_stopped_by_a_lower_deadline_which_keeps_their_logs(failed) -> None:
    survivors = tuple(LowerPodDeadline(name=p.name, uid=p.uid) for p in failed.pods if p.running)
    assert survivors
    assert plan(failed, NOW).actions == survivors


def test_a_pod_is_deleted_only_if_its_kubelet_has_not_stopped_it_in_time(failed) -> None:
    lowered = replace(
        failed, pods=tuple(replace(p, active_deadline_seconds=1) if p.running else p for p in failed.pods)
    )
    too_late = NOW + GRACE_SECONDS + KEPT_SECONDS
    assert (plan(lowered, NOW).actions, plan(lowered, NOW).wake_at) == ((), too_late)
    assert plan(lowered, too_late - 1).actions == ()
    assert set(deleted(plan(lowered, too_late))) == {p.name for p in failed.pods if p.running}


def test_a_finished_job_whose_pods_have_all_stopped_needs_nothing(failed) -> None:
    stopped = tuple(
        ended(failed.job, p.rank, p.attempt, code=143, reason="DeadlineExceeded", phase="Failed") if p.running else p
        for p in failed.pods
    )
    made = plan(replace(failed, pods=stopped), NOW + 1)
    assert (made.status, made.actions, made.wake_at) == (failed.job.status, (), None)


def test_a_pod_that_never_ran_has_no_log_and_is_deleted() -> None:
    of = job(nodes=1, deadlines={"queueSeconds": 30})
    seen = reconciled(reconciled(observed(of, pending(of)), NOW - 30))
    assert seen.job.status.reason == Reason.QUEUE_DEADLINE
    assert set(deleted(plan(seen, NOW))) == {"job-1-0"}


def test_the_end_is_final() -> None:
    of = job(nodes=1, restart={"maxRestarts": 0})
    failed = reconciled(broken(of, crashed(of)))
    for pods in ((), (pod(of, 0),), (ended(of, 0),)):
        assert plan(replace(failed, pods=pods), NOW + 1000).status == failed.job.status


def test_an_edit_changes_the_observed_generations_of_the_status_and_nothing_else() -> None:
    of = job(nodes=1, restart={"maxRestarts": 0})
    failed = reconciled(broken(of, crashed(of)))
    before, after = failed.job.status, plan(replace(failed, job=replace(failed.job, generation=2)), NOW).status
    assert {after.observed_generation, *(condition.observed_generation for condition in after.conditions)} == {2}
    assert after.model_copy(update={"observed_generation": 1, "conditions": before.conditions}) == before


def test_a_finished_job_is_deleted_after_its_time_to_live() -> None:
    of = job(nodes=1, ttlSecondsAfterFinished=60)
    done = reconciled(replace(running(of), pods=(ended(of, 0),), logs={"pod-uid-1-0": NO_LOG}))
    early = plan(done, NOW + 59)
    assert (early.actions, early.wake_at) == ((), NOW + 60)
    assert plan(done, NOW + 60).actions == (DeleteJob(name="job", uid="job-uid"),)


def test_no_node_of_the_evidence_of_a_finished_job_is_looked_up() -> None:
    """A finished job with one evicted pod among its evidence polled that pod's node every two seconds for ever."""
    of = job(nodes=2, restart={"maxRestarts": 0})
    evicted = ended(of, 0, code=143, disruption="EvictionByEvictionAPI: evicting")
    done = reconciled(broken(of, evicted, ended(of, 1, code=1, message="x", ended_seen=NOW - 20)))
    done = reconciled(replace(done, logs={evicted.uid: NO_LOG}))
    assert done.job.status.finished
    assert plan(done, NOW).lookups == ()
    overdue = replace(done, pods=(pod(of, 1, deletion_deadline=NOW - 5),))
    assert plan(overdue, NOW).lookups == (ReadNode(name="node-1"),)
