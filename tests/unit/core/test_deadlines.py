"""Deadlines of a job: what each of them ends, and when."""

from dataclasses import replace

import pytest

from ddpjob_operator.api.names import Phase, Reason
from ddpjob_operator.core.model import Rejection
from ddpjob_operator.core.plan import plan
from support.builders import NOW, edited, job, observed, pending, pod, reconciled, running

START_30 = job(nodes=2, deadlines={"startSeconds": 30})
LEAVING = Rejection("waiting until pod job-1-0 of another job is deleted", is_terminating=True)
REFUSED = Rejection("denied by policy")
DOWN = Rejection("Internal error occurred: failed calling webhook", by_failure=True)


def test_a_gang_that_has_no_node_at_its_queue_deadline_fails() -> None:
    of = job(nodes=1, deadlines={"queueSeconds": 30})
    seen = reconciled(observed(of, pending(of)))
    assert plan(seen, NOW).wake_at == NOW + 30
    status = plan(seen, NOW + 30).status
    assert (status.phase, status.reason) == (Phase.FAILED, Reason.QUEUE_DEADLINE)
    assert "queueSeconds" in status.message


def test_a_gang_that_has_not_started_at_its_start_deadline_is_restarted_and_counted() -> None:
    of = job(nodes=1, deadlines={"startSeconds": 30})
    seen = reconciled(observed(of, pending(of, node="node-0")))
    made = plan(seen, NOW + 30)
    assert (made.status.attempt, made.status.restarts.counted, made.write_ahead) == (2, 1, True)
    later = plan(reconciled(seen, NOW + 30), NOW + 31).status
    assert "None" not in later.message, "no rank has failed"


def test_active_time_adds_up_over_attempts_and_leaves_out_suspension() -> None:
    seen = reconciled(edited(running(job(nodes=1, deadlines={"activeSeconds": 100}), NOW), suspend=True), NOW + 70)
    assert seen.job.status.active_seconds_before == 70
    resumed = reconciled(edited(replace(seen, pods=(pod(seen.job, 0, 2),)), suspend=False), NOW + 1000)
    assert plan(resumed, NOW + 1029).status.phase == Phase.RUNNING
    status = plan(resumed, NOW + 1030).status
    assert (status.phase, status.reason) == (Phase.FAILED, Reason.ACTIVE_DEADLINE)


@pytest.mark.parametrize(
    ("of", "rejections", "seconds", "reasons"),
    [
        (
            job(nodes=2, deadlines={"queueSeconds": 30}),
            {"job-1-0": Rejection("exceeded quota")},
            30,
            (Reason.QUOTA_EXCEEDED, Reason.QUEUE_DEADLINE),
        ),
        (START_30, {"job-1-0": REFUSED}, 30, (Reason.POD_REJECTED, Reason.POD_REJECTED)),
        # What the API server refuses is reported before what only takes time.
        (START_30, {"job-1-0": LEAVING, "job-1-1": REFUSED}, 30, (Reason.POD_REJECTED, Reason.POD_REJECTED)),
        # After a node loss the pods of a deleted job can outlive it; the job applied again failed with PodRejected.
        (START_30, {"job-1-0": LEAVING}, None, (Reason.STOPPING,)),
        (START_30, {"job-1-0": DOWN}, None, (Reason.POD_REJECTED,)),
    ],
    ids=["a quota", "a policy", "a policy and another job's pod", "another job's pod", "a webhook that is down"],
)
def test_a_deadline_ends_what_is_refused_and_not_what_can_only_be_waited_for(of, rejections, seconds, reasons) -> None:
    seen = reconciled(observed(of, rejections=rejections))
    before = plan(seen, NOW + (seconds - 1 if seconds else 10**6)).status
    assert (before.phase, before.reason) == (Phase.PENDING, reasons[0])
    assert any(rejection.message in before.message for rejection in rejections.values())
    if seconds:
        after = plan(seen, NOW + seconds).status
        assert (after.phase, after.reason) == (Phase.FAILED, reasons[1])
        if REFUSED in rejections.values():
            assert "denied by policy" in after.message


def test_a_policy_that_refuses_a_pod_after_hours_of_waiting_for_quota_has_its_own_deadline() -> None:
    """One refusal by a webhook that was confused for a moment ended such jobs."""
    waiting = reconciled(observed(START_30, rejections={"job-1-0": Rejection("exceeded quota")}))
    seen = replace(waiting, rejections={"job-1-0": replace(REFUSED, since=NOW + 7200)})
    assert plan(seen, NOW + 7229).status.phase == Phase.PENDING
    assert plan(seen, NOW + 7230).status.phase == Phase.FAILED
