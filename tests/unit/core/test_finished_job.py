"""A job that fails for good keeps every pod whose program ran, with its log: survivors are stopped, not deleted."""

from dataclasses import replace

import pytest

from builders import NOW, TRACEBACK, broken, deleted, ended, job, observed, pod, program, running, with_status
from ddpjob_operator.api.names import Phase, Reason
from ddpjob_operator.core.model import LowerPodDeadline, Observed
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.stopping import KEPT_SECONDS

#: The pods' own grace: Kubernetes' default.
GRACE_SECONDS = 30.0


def failed(seen: Observed, now: float = NOW) -> Observed:
    """The same after the status with the job's failure was written."""
    seen = with_status(seen, plan(seen, now).status)
    assert seen.job.status.phase == Phase.FAILED
    return seen


def out_of_restarts(code: int = 7, **spec: object) -> Observed:
    """A job of two ranks without a restart left: rank 1 has ended, rank 0 runs."""
    of = program(nodes=2, restart={"maxRestarts": 0, **spec})
    return failed(broken(of, ended(of, 1, code=code, message=TRACEBACK)))


def out_of_restarts_after_two_attempts() -> Observed:
    """The same with the one restart of its budget used up, and the kept pods of attempt 1 still there."""
    of = program(nodes=2, restart={"maxRestarts": 1})
    seen = broken(of, ended(of, 1, code=7, message=TRACEBACK))
    seen = with_status(seen, plan(seen, NOW).status)
    second = replace(seen, pods=(*seen.pods[1:], pod(of, 0, 2), pod(of, 1, 2)))
    second = with_status(second, plan(second, NOW).status)
    return failed(replace(second, pods=(*seen.pods[1:], pod(of, 0, 2), ended(of, 1, 2, code=7, message=TRACEBACK))))


def ended_by_a_rule() -> Observed:
    return out_of_restarts(maxRestarts=3, rules=[{"exitCodes": [7], "action": "Fail"}])


def refused_by_the_trainer() -> Observed:
    of = job(nodes=2)
    return failed(broken(of, ended(of, 1, code=2, message="rank 1\nbad value")))


def active_for_too_long() -> Observed:
    return failed(running(program(nodes=2, deadlines={"activeSeconds": 60}), NOW - 60))


def not_finished_in_time() -> Observed:
    of = program(nodes=2, restart={"maxRestarts": 0}, deadlines={"finishSeconds": 60})
    seen = broken(of, ended(of, 1, ended_seen=NOW - 60))
    return failed(with_status(seen, plan(seen, NOW - 50).status))


FAILURES = {
    "the budget of restarts is used up": out_of_restarts,
    "the budget is used up in the second attempt": out_of_restarts_after_two_attempts,
    "a restart rule says Fail": ended_by_a_rule,
    "another attempt would end the same": refused_by_the_trainer,
    "deadlines.activeSeconds has passed": active_for_too_long,
    "deadlines.finishSeconds has passed": not_finished_in_time,
}


def lowered(seen: Observed) -> Observed:
    """The same after the deadline of every running pod was lowered."""
    return replace(seen, pods=tuple(replace(p, active_deadline_seconds=1) if p.running else p for p in seen.pods))


@pytest.mark.parametrize("fail", FAILURES.values(), ids=FAILURES)
def test_running_pods_are_stopped_by_a_lower_deadline_which_keeps_their_logs(fail) -> None:
    seen = fail()

    survivors = tuple(LowerPodDeadline(name=p.name, uid=p.uid) for p in seen.pods if p.running)
    assert survivors
    assert plan(seen, NOW).actions == survivors


@pytest.mark.parametrize("fail", FAILURES.values(), ids=FAILURES)
def test_no_pod_is_deleted_while_its_kubelet_has_time_to_stop_it(fail) -> None:
    seen = lowered(fail())

    too_late = NOW + GRACE_SECONDS + KEPT_SECONDS
    assert (plan(seen, NOW).actions, plan(seen, too_late - 1).actions) == ((), ())
    assert plan(seen, NOW).wake_at == too_late


@pytest.mark.parametrize("fail", FAILURES.values(), ids=FAILURES)
def test_a_pod_that_its_kubelet_has_not_stopped_in_time_is_deleted(fail) -> None:
    seen = lowered(fail())

    late = plan(seen, NOW + GRACE_SECONDS + KEPT_SECONDS)
    assert set(deleted(late)) == {p.name for p in seen.pods if p.running}


@pytest.mark.parametrize("fail", FAILURES.values(), ids=FAILURES)
def test_once_all_pods_have_stopped_nothing_is_left_to_do(fail) -> None:
    seen = fail()
    of = seen.job
    stopped = tuple(
        ended(of, p.rank, p.attempt, code=143, reason="DeadlineExceeded", phase="Failed") if p.running else p
        for p in seen.pods
    )

    made = plan(replace(seen, pods=stopped), NOW + 1)
    assert (made.status, made.actions, made.wake_at) == (seen.job.status, (), None)


def test_a_pod_that_never_ran_has_no_log_and_is_deleted() -> None:
    of = job(nodes=1, deadlines={"queueSeconds": 30})
    seen = observed(of, pod(of, 0, node=None, running=False, phase="Pending"))
    seen = with_status(seen, plan(seen, NOW - 30).status)
    seen = failed(seen)

    assert seen.job.status.reason == Reason.QUEUE_DEADLINE
    assert set(deleted(plan(seen, NOW))) == {"job-1-0"}
