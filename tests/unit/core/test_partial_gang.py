from dataclasses import replace

from builders import ECHO, NOW, created, deleted, ended, job, observed, pod, program, with_status
from ddpjob_operator.api.names import Phase, Reason
from ddpjob_operator.core.model import Rejection, Waiting
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.policies.partial_gang import HOLD_SECONDS, MAX_HOLD_SECONDS, PAUSE_SECONDS
from ddpjob_operator.core.times import epoch_seconds

NO_PLACE = Waiting(reason="Unschedulable", message="0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")


def partly_placed(of=None):
    of = of or job(nodes=2)
    held = pod(of, 1, node=None, running=False, phase="Pending", waiting=NO_PLACE)
    seen = observed(of, pod(of, 0), held)
    return with_status(seen, plan(seen, NOW).status)


def test_it_holds_them_for_a_while_and_says_so() -> None:
    made = plan(partly_placed(), NOW + 1)

    assert made.status.attempt == 1
    assert NOW + 0.5 * HOLD_SECONDS <= made.wake_at <= NOW + 1.5 * HOLD_SECONDS
    assert "to be released" in (made.status.message or "")


def test_then_they_go_to_others_without_counting() -> None:
    seen = partly_placed()
    ahead = plan(seen, NOW + 1.5 * HOLD_SECONDS).status
    assert (ahead.attempt, ahead.phase, ahead.reason) == (2, Phase.PENDING, Reason.GANG_GIVEN_BACK)
    assert (ahead.restarts.counted, ahead.restarts.infrastructure, ahead.failure) == (0, 0, None)

    assert deleted(plan(with_status(seen, ahead), NOW + 46)) == {"job-1-0": 1, "job-1-1": 1}


def test_and_are_asked_for_again_a_little_later() -> None:
    seen = partly_placed()
    at = NOW + 1.5 * HOLD_SECONDS
    seen = replace(with_status(seen, plan(seen, at).status), pods=())
    pause = epoch_seconds(seen.job.status.retry_time) - at
    assert 0.5 * PAUSE_SECONDS - 1 <= pause <= 1.5 * PAUSE_SECONDS

    assert created(plan(seen, at + pause - 1)) == []
    assert created(plan(seen, at + pause)) == ["job-2-0", "job-2-1"]


def test_it_holds_them_longer_each_time_and_anew_once_it_was_whole() -> None:
    of = job(nodes=2)
    seen = partly_placed(replace(of, status=of.status.model_copy(update={"give_backs": 2})))
    assert plan(seen, NOW + 1).wake_at >= NOW + 0.5 * HOLD_SECONDS * 4

    whole = replace(seen, pods=(pod(of, 0), pod(of, 1)))
    assert plan(whole, NOW + 1).status.give_backs == 0


def test_giving_back_does_not_begin_the_queue_anew() -> None:
    seen = partly_placed(job(nodes=2, deadlines={"queueSeconds": 100}))
    seen = replace(with_status(seen, plan(seen, NOW + 60).status), pods=())
    seen = with_status(seen, plan(seen, NOW + 99).status)

    assert plan(seen, NOW + 100).status.reason == Reason.QUEUE_DEADLINE


def test_a_gang_without_any_place_just_waits() -> None:
    of = job(nodes=2)
    held = [pod(of, n, node=None, running=False, phase="Pending", waiting=NO_PLACE) for n in range(2)]
    seen = observed(of, *held)
    seen = with_status(seen, plan(seen, NOW).status)

    made = plan(seen, NOW + 10**6)
    assert (made.status.attempt, made.wake_at) == (1, None)


def test_an_api_server_that_fails_takes_no_places_until_it_has_failed_for_long() -> None:
    """A minute of answers of 500 once cost a gang its places, and an attempt."""
    of = job(nodes=2)
    failing = {"job-1-1": Rejection("etcdserver: request timed out", by_failure=True)}
    seen = observed(of, pod(of, 0), rejections=failing)
    seen = with_status(seen, plan(seen, NOW).status)
    assert plan(seen, NOW + 1.5 * HOLD_SECONDS).status.attempt == 1
    assert plan(seen, NOW + 1.5 * MAX_HOLD_SECONDS).status.reason == Reason.GANG_GIVEN_BACK

    refused = replace(seen, rejections={"job-1-1": Rejection("exceeded quota")})
    assert plan(refused, NOW + 1.5 * HOLD_SECONDS).status.reason == Reason.GANG_GIVEN_BACK


def test_ranks_that_time_out_for_others_without_a_place_are_no_failure() -> None:
    of = program(nodes=2)
    seen = partly_placed(of)
    made = plan(replace(seen, pods=(ended(of, 0, code=1, message=ECHO), seen.pods[1])), NOW + 5)

    assert (made.status.reason, made.status.restarts.counted) == (Reason.GANG_GIVEN_BACK, 0)


def test_a_job_that_is_suspended_in_the_queue_queues_anew() -> None:
    seen = partly_placed(job(nodes=2, deadlines={"queueSeconds": 100}))
    seen = replace(with_status(seen, plan(seen, NOW + 60).status), pods=())
    suspended = replace(seen, job=replace(seen.job, spec=job(nodes=2, suspend=True).spec))
    suspended = with_status(suspended, plan(suspended, NOW + 61).status)
    resumed = replace(suspended, job=replace(suspended.job, spec=job(nodes=2, deadlines={"queueSeconds": 100}).spec))

    assert created(plan(resumed, NOW + 10_000)) == ["job-2-0", "job-2-1"]
    assert plan(resumed, NOW + 10_000).status.phase == Phase.PENDING


def test_a_gang_that_is_still_being_placed_keeps_its_places() -> None:
    """Behind a long queue the scheduler places a gang one pod after the other, long after it was created."""
    seen = partly_placed()
    next_in_line = replace(seen, pods=(seen.pods[0], replace(seen.pods[1], waiting=None)))

    assert plan(next_in_line, NOW + 600).status.attempt == 1


def test_a_gang_that_queued_for_long_keeps_its_first_places_as_long_as_any() -> None:
    """It once gave its first place back at once, since the time in the queue was taken for time of holding."""
    seen = partly_placed()
    placed_now = replace(seen, pods=(replace(seen.pods[0], placed=NOW + 3600), seen.pods[1]))

    assert plan(placed_now, NOW + 3600).status.attempt == 1
    assert plan(placed_now, NOW + 3600 + 1.5 * HOLD_SECONDS).status.attempt == 2
