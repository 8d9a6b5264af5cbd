"""A gang of which only some pods have a node: how long it holds them, and when it releases them."""

from dataclasses import replace

from ddpjob_operator.api.names import Phase, Reason
from ddpjob_operator.core.actions import ReadScaleUp
from ddpjob_operator.core.model import GATED, Rejection, ScaleUp, Waiting
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.policies.autoscaling import MAX_PROVISIONING_SECONDS, PROVISIONING_SECONDS
from ddpjob_operator.core.policies.partial_gang import HOLD_SECONDS, MAX_HOLD_SECONDS, PAUSE_SECONDS
from ddpjob_operator.core.times import epoch_seconds
from support.builders import (
    ECHO,
    NOW,
    crashed,
    created,
    deleted,
    edited,
    job,
    observed,
    pending,
    pod,
    program,
    reconciled,
    updated,
)

NO_NODE = Waiting(reason="Unschedulable", message="0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
QUEUED = job(nodes=2, deadlines={"queueSeconds": 100})
#: The latest moment at which the nodes are released.
RELEASED = NOW + 1.5 * HOLD_SECONDS


def partly_placed(of=None):
    """Rank 0 runs, and no node has room for rank 1."""
    of = of or job(nodes=2)
    return reconciled(observed(of, pod(of, 0), pending(of, 1, waiting=NO_NODE)))


def released(seen, at):
    """The same after its nodes were released and its pods are gone."""
    return replace(reconciled(seen, at), pods=())


def test_the_gang_holds_its_nodes_for_a_while_and_reports_when_they_will_be_released() -> None:
    made = plan(partly_placed(), NOW + 1)
    assert made.status.attempt == 1
    assert NOW + 0.5 * HOLD_SECONDS <= made.wake_at <= RELEASED
    assert "to be released" in made.status.message


def test_a_gang_whose_other_pods_no_scheduler_may_consider_yet_keeps_its_nodes() -> None:
    """A queue removes the gates of its pods one after the other."""
    of = job(nodes=2)
    gated = pending(of, 1, waiting=Waiting(reason=GATED, message=""))
    seen = reconciled(observed(of, pod(of, 0), gated))
    made = plan(seen, NOW + 10 * MAX_HOLD_SECONDS)
    assert (made.status.attempt, made.write_ahead) == (1, False)


def test_pods_of_a_partial_gang_are_deleted_after_a_while_which_is_not_counted() -> None:
    seen = reconciled(partly_placed(), RELEASED)
    status = seen.job.status
    assert (status.attempt, status.phase, status.reason) == (2, Phase.PENDING, Reason.GANG_GIVEN_BACK)
    assert (status.restarts.counted, status.restarts.infrastructure, status.failure) == (0, 0, None)
    assert deleted(plan(seen, NOW + 46)) == {"job-1-0": 1, "job-1-1": 1}


def test_the_pods_are_created_again_after_a_pause() -> None:
    seen = released(partly_placed(), RELEASED)
    pause = epoch_seconds(seen.job.status.retry_time) - RELEASED
    assert 0.5 * PAUSE_SECONDS - 1 <= pause <= 1.5 * PAUSE_SECONDS
    assert created(plan(seen, RELEASED + pause - 1)) == []
    assert created(plan(seen, RELEASED + pause)) == ["job-2-0", "job-2-1"]


def test_the_nodes_are_held_longer_each_time_until_the_gang_was_complete() -> None:
    seen = updated(partly_placed(), give_backs=2)
    assert plan(seen, NOW + 1).wake_at >= NOW + 0.5 * HOLD_SECONDS * 4
    complete = replace(seen, pods=(pod(seen.job, 0), pod(seen.job, 1)))
    assert plan(complete, NOW + 1).status.give_backs == 0


def test_the_queue_deadline_includes_the_time_before_nodes_were_released() -> None:
    seen = reconciled(released(partly_placed(QUEUED), NOW + 60), NOW + 99)
    assert plan(seen, NOW + 100).status.reason == Reason.QUEUE_DEADLINE


def test_suspending_a_queued_job_resets_its_queue_deadline() -> None:
    seen = released(partly_placed(QUEUED), NOW + 60)
    made = plan(edited(reconciled(edited(seen, suspend=True), NOW + 61), suspend=False), NOW + 10_000)
    assert created(made) == ["job-2-0", "job-2-1"]
    assert made.status.phase == Phase.PENDING


def test_a_failing_api_server_makes_a_gang_release_its_nodes_only_after_a_long_time() -> None:
    """A minute of answers of 500 once cost a gang its nodes, and an attempt."""
    of = job(nodes=2)
    failing = {"job-1-1": Rejection("etcdserver: request timed out", by_failure=True)}
    seen = reconciled(observed(of, pod(of, 0), rejections=failing))
    assert plan(seen, RELEASED).status.attempt == 1
    assert plan(seen, NOW + 1.5 * MAX_HOLD_SECONDS).status.reason == Reason.GANG_GIVEN_BACK
    refused = replace(seen, rejections={"job-1-1": Rejection("exceeded quota")})
    assert plan(refused, RELEASED).status.reason == Reason.GANG_GIVEN_BACK


def test_ranks_that_timed_out_waiting_for_a_pod_without_a_node_are_no_failure() -> None:
    of = program(nodes=2)
    seen = partly_placed(of)
    status = plan(replace(seen, pods=(crashed(of, message=ECHO), seen.pods[1])), NOW + 5).status
    assert (status.reason, status.restarts.counted) == (Reason.GANG_GIVEN_BACK, 0)


def test_a_gang_that_is_still_being_placed_keeps_its_nodes() -> None:
    """Behind a long queue the scheduler places a gang one pod after the other, long after it was created."""
    seen = partly_placed()
    next_in_line = replace(seen, pods=(seen.pods[0], replace(seen.pods[1], waiting=None)))
    assert plan(next_in_line, NOW + 600).status.attempt == 1


def test_the_time_in_the_queue_does_not_count_as_time_of_holding_nodes() -> None:
    """A gang that had queued for long once released its first node at once."""
    seen = partly_placed()
    placed_now = replace(seen, pods=(replace(seen.pods[0], placed=NOW + 3600), seen.pods[1]))
    assert plan(placed_now, NOW + 3600).status.attempt == 1
    assert plan(placed_now, RELEASED + 3600).status.attempt == 2


def test_a_gang_waits_longer_for_nodes_that_an_autoscaler_has_announced() -> None:
    seen = partly_placed()
    assert ReadScaleUp(job="job") in plan(seen, NOW + 1).lookups
    announced = replace(seen, scale_up=ScaleUp(since=NOW + 10, latest=NOW + 20))

    before = plan(announced, NOW + 150)
    assert before.status.attempt == 1
    assert before.status.message.startswith("waiting for node autoscaling since 2m: 1 of 2 pods have no node: ")
    assert before.wake_at == NOW + 190, "when it says 3m"
    too_late = NOW + 20 + PROVISIONING_SECONDS
    assert plan(announced, too_late - 1).status.attempt == 1
    assert plan(announced, too_late).status.reason == Reason.GANG_GIVEN_BACK

    again = replace(seen, scale_up=ScaleUp(since=NOW, latest=NOW + MAX_PROVISIONING_SECONDS))
    assert plan(again, NOW + MAX_PROVISIONING_SECONDS).status.reason == Reason.GANG_GIVEN_BACK, "they never come"


def test_nodes_announced_for_an_attempt_that_has_released_its_places_come_for_the_next_one() -> None:
    """Of whose pods the cluster autoscaler says nothing: it has found that the announced nodes have room for them."""
    seen = replace(released(partly_placed(), RELEASED), scale_up=ScaleUp(since=NOW + 40, latest=NOW + 40))
    seen = reconciled(seen, NOW + 100)
    of = seen.job
    again = replace(seen, pods=(pod(of, 0, attempt=2), pending(of, 1, attempt=2, waiting=NO_NODE)))
    made = plan(again, NOW + 40 + PROVISIONING_SECONDS - 1)
    assert (made.status.attempt, made.status.message[:27]) == (2, "waiting for node autoscaling"[:27])
    assert plan(again, NOW + 40 + PROVISIONING_SECONDS).status.attempt == 3


def test_nodes_announced_before_the_gang_began_to_wait_are_not_for_it() -> None:
    seen = replace(partly_placed(), scale_up=ScaleUp(since=NOW - 60, latest=NOW - 10))
    assert plan(seen, RELEASED).status.reason == Reason.GANG_GIVEN_BACK


def test_a_gang_that_holds_nothing_says_that_nodes_are_announced() -> None:
    of = job(nodes=2)
    seen = reconciled(observed(of, *(pending(of, rank, waiting=NO_NODE) for rank in range(2))))
    announced = replace(seen, scale_up=ScaleUp(since=NOW + 5, latest=NOW + 5))
    assert plan(announced, NOW + 1).status.message.startswith("waiting for node autoscaling: 2 of 2 pods")
    gated = [pending(of, rank, waiting=Waiting(reason=GATED, message="")) for rank in range(2)]
    assert plan(replace(seen, pods=tuple(gated)), NOW + 1).lookups == (), "no autoscaler considers a gated pod"
    assert not plan(announced, NOW + 6 + PROVISIONING_SECONDS).status.message.startswith("waiting")
