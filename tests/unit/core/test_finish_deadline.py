"""The deadline of ranks that go on after others have succeeded."""

from dataclasses import replace

import pytest

from ddpjob_operator.api.names import Phase, Reason
from ddpjob_operator.core.model import NO_LOG
from ddpjob_operator.core.plan import plan
from support.builders import NOW, changed, ended, job, pod, reconciled, running


def one_of_two_done(**spec):
    seen = running(job(nodes=2, **spec), NOW - 100)
    return replace(seen, pods=(pod(seen.job, 0), ended(seen.job, 1, ended_seen=NOW)))


def test_the_status_names_the_ranks_that_still_run_half_a_minute_after_the_first_success() -> None:
    made = plan(one_of_two_done(), NOW + 29)
    assert (made.status.reason, made.wake_at) == (Reason.RUNNING, NOW + 30)
    status = plan(one_of_two_done(), NOW + 30).status
    assert (status.phase, status.reason) == (Phase.RUNNING, Reason.FINISHING)
    assert "1 of 2 pods have succeeded; pod job-1-0 (node rank 0, node node-0) still runs" in status.message


def test_the_gang_is_restarted_at_the_deadline_and_the_late_rank_is_named() -> None:
    seen = reconciled(one_of_two_done(deadlines={"finishSeconds": 600}), NOW + 30)
    assert plan(seen, NOW + 599).status.attempt == 1
    failure = plan(seen, NOW + 600).status.failure
    assert (failure.reason, failure.rank, failure.pod) == (Reason.FINISH_DEADLINE, 0, "job-1-0")


@pytest.mark.parametrize(
    "stopped_by",
    [
        {"deletion_deadline": NOW + 9},
        {"disruption": "EvictionByEvictionAPI: evicting"},
        {"reason": "DeadlineExceeded"},  # a deadline of its template
        {"reason": "Terminated"},  # the kubelet
    ],
)
def test_a_rank_that_was_stopped_and_exits_with_code_0_has_not_succeeded(stopped_by) -> None:
    """A program may answer SIGTERM with exit code 0; taken for success, an evicted job of one rank would be Succeeded."""
    of = job(nodes=1)
    status = plan(replace(running(of), pods=(ended(of, 0, **stopped_by),), logs={"pod-uid-1-0": NO_LOG}), NOW).status
    assert (status.attempt, status.phase) == (2, Phase.RESTARTING)


def test_a_rank_that_succeeded_stays_so_when_its_pod_is_deleted() -> None:
    seen = one_of_two_done()
    done = seen.pods[1]
    assert plan(replace(seen, pods=seen.pods[:1], vanished=(done,)), NOW).status.attempt == 1

    drained = changed(done, deletion_deadline=NOW, deletion_after_exit=True, disruption="x")
    both = replace(seen, pods=(ended(seen.job, 0),), vanished=(drained,), logs={"pod-uid-1-0": NO_LOG})
    assert plan(both, NOW).status.phase == Phase.SUCCEEDED
