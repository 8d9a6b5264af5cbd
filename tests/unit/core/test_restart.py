"""When the next attempt starts, and which nodes it avoids."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.api.names import Reason
from ddpjob_operator.api.status import DDPJobStatus, Failure, Progress, Restarts
from ddpjob_operator.core.failure.node_avoidance import avoided_nodes
from ddpjob_operator.core.model import NO_LOG
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.times import epoch_seconds, rfc3339
from support.builders import NOW, crashed, created, ended, in_attempt, job, pod, program, reconciled, running, updated


def failed_again(in_a_row: int, ran_seconds: float = 5, *, reconcile: bool = True):
    """A gang that fails now, after so many failures in a row; the next attempt's status is written, its pod stopped."""
    of = program(nodes=1, restart={"maxRestarts": 100})
    seen = updated(running(of, NOW - ran_seconds), restarts=Restarts(in_a_row=in_a_row))
    failed = replace(seen, pods=(crashed(of),))
    return reconciled(failed) if reconcile else failed


def delay(seen) -> float:
    retry_time = seen.job.status.retry_time
    return epoch_seconds(retry_time) - NOW if retry_time else 0.0


def test_the_first_restart_does_not_wait() -> None:
    assert created(plan(failed_again(0), NOW)) == ["job-2-0"]


@pytest.mark.parametrize(("in_a_row", "about"), [(1, 10), (2, 20), (3, 40), (6, 300), (50, 300)])
def test_further_restarts_wait_twice_as_long_each_time(in_a_row, about) -> None:
    assert 0.8 * about - 1 <= delay(failed_again(in_a_row)) <= 1.2 * about


def test_jobs_that_fail_together_are_restarted_at_different_times() -> None:
    seen = failed_again(2, reconcile=False)
    jobs = [replace(seen.job, uid=f"uid-{number}") for number in range(8)]
    delays = [delay(reconciled(replace(seen, job=of))) for of in jobs]
    assert len(set(delays)) > 4
    assert delays == [delay(reconciled(replace(seen, job=of))) for of in jobs], (
        "an operator that starts again waits as long"
    )


def test_pods_are_created_at_the_time_that_the_status_names() -> None:
    seen = failed_again(1)
    at = NOW + delay(seen)
    waiting = plan(seen, at - 1)
    assert (created(waiting), waiting.wake_at, waiting.status.reason) == ([], at, Reason.BACKING_OFF)
    assert rfc3339(at) in waiting.status.message
    assert created(plan(seen, at)) == ["job-2-0"]
    assert created(plan(seen, NOW - 86_400)) == ["job-2-0"], "a clock that was set back does not stop the job"


def test_an_attempt_that_ran_for_long_resets_the_back_off() -> None:
    seen = failed_again(5, ran_seconds=301)
    assert (delay(seen), seen.job.status.restarts.in_a_row) == (0, 1)


def failed_at(step: int, checkpoint_step: int | None, reached: Restarts, **more: Any) -> Restarts:
    """The counters after a failure of the second attempt, which last reported this progress."""
    of = in_attempt(program(nodes=1, restart={"maxRestarts": 100}), 2)
    seen = running(of, NOW - 25)
    seen = updated(seen, restarts=reached, progress=Progress(step=step, checkpoint_step=checkpoint_step))
    return plan(replace(seen, pods=(crashed(of, 0, 2),), **more), NOW).status.restarts


EARLIER = Restarts(in_a_row=3, furthest_step=300, furthest_checkpoint_step=200)


@pytest.mark.parametrize(
    ("step", "checkpoint_step", "in_a_row"),
    [
        (301, 200, 1),  # further than any attempt before it
        (290, 250, 1),  # the next attempt starts from a newer checkpoint
        (300, 200, 4),  # the last progress may even be that of the attempt before
        (290, 100, 4),  # an older checkpoint, because the newest was lost
        (250, None, 4),
    ],
)
def test_an_attempt_that_made_progress_was_healthy_however_short_it_was(step, checkpoint_step, in_a_row) -> None:
    restarts = failed_at(step, checkpoint_step, EARLIER)
    assert restarts.in_a_row == in_a_row
    assert restarts.furthest_step == max(step, 300)
    assert restarts.furthest_checkpoint_step == max(checkpoint_step or 0, 200)


def test_progress_that_the_status_does_not_show_yet_counts() -> None:
    assert failed_at(290, 200, EARLIER, progress=Progress(step=310)).in_a_row == 1


def stops_in_a_row(ran_seconds: float, rule: bool, times: int) -> tuple[list[float], Restarts, str | None]:
    """The delays and the counters after so many attempts that each ran this long and came one step further.

    Each attempt saves a checkpoint and exits with code 75, or prints a step and exits with a code that a rule ignores.
    """
    ignored = {"restart": {"rules": [{"exitCodes": [9], "action": "Ignore"}]}} if rule else {}
    of, now, delays = program(nodes=1, **ignored), NOW, list[float]()
    for attempt in range(1, times + 1):
        seen = running(of, now)
        assert seen.job.status.attempt == attempt
        now += ran_seconds
        message = "" if rule else f"checkpointStep={attempt}"
        last = ended(of, 0, attempt, code=9 if rule else 75, message=message, ended_seen=now)
        seen = replace(seen, pods=(last,), progress=Progress(step=attempt) if rule else None, logs={last.uid: NO_LOG})
        status = plan(seen, now).status
        if status.finished:
            return delays, status.restarts, status.reason
        delays.append(epoch_seconds(status.retry_time) - now if status.retry_time else 0.0)
        of, now = replace(of, status=status), now + delays[-1] + 1
    return delays, of.status.restarts, None


either_rule = pytest.mark.parametrize(
    "rule", [False, True], ids=["exit code 75 with a checkpoint", "a rule that ignores the exit code"]
)


@either_rule
def test_attempts_that_end_within_seconds_wait_and_are_bounded_although_each_makes_progress(rule) -> None:
    delays, restarts, end = stops_in_a_row(2, rule, times=120)
    assert delays[0] == 0, "one short attempt may be a preemption"
    assert 7 <= delays[1] <= 13
    assert min(delays[7:]) >= 0.8 * 300 - 1
    assert (end, restarts.infrastructure) == (Reason.TOO_MANY_INFRASTRUCTURE_RESTARTS, 100)


@either_rule
def test_attempts_of_some_seconds_that_make_progress_neither_wait_nor_are_bounded(rule) -> None:
    delays, restarts, end = stops_in_a_row(20, rule, times=120)
    assert (set(delays), restarts.infrastructure, end) == ({0.0}, 120, None)


def stopped_before_rank_0_had_saved(restarts: Restarts, now: float):
    """Rank 1 has stopped; the next attempt's status is written, and then rank 0 says what it has saved."""
    of = job(nodes=2)
    stopped = ended(of, 1, code=75)
    seen = reconciled(replace(updated(running(of), restarts=restarts), pods=(pod(of, 0), stopped)), now)
    return seen, replace(seen, pods=(ended(of, 0, code=75, message="checkpointStep=9"), stopped))


def test_a_late_checkpoint_step_of_a_short_attempt_does_not_end_the_delay() -> None:
    seen, saved = stopped_before_rank_0_had_saved(Restarts(short_in_a_row=3, in_a_row=1), NOW + 2)
    retry_time = seen.job.status.retry_time
    assert retry_time is not None
    made = plan(saved, NOW + 3)
    assert (created(made), made.status.retry_time, made.status.reason) == ([], retry_time, Reason.BACKING_OFF)
    assert "4 attempts in a row ended within 10s" in made.status.message


def test_a_late_checkpoint_step_ends_the_delay() -> None:
    seen, saved = stopped_before_rank_0_had_saved(Restarts(in_a_row=3), NOW)
    assert delay(seen) > 10
    made = plan(saved, NOW + 1)
    assert created(made) == ["job-2-0", "job-2-1"]
    assert (made.status.reason, made.status.restarts.in_a_row) == (Reason.CREATING, 0)
    assert "None" not in made.status.message


def avoided(seen) -> tuple[list[str], str]:
    """The nodes that the new pod avoids if this failure ended the last two attempts, and the message."""
    last = seen.job.status.attempts[-1]
    twice = updated(replace(seen, pods=()), attempts=[last.model_copy(update={"attempt": 0}), last])
    made = plan(twice, NOW + 60)
    (action,) = (action for action in made.actions if action.name == "job-2-0")
    affinity = action.body["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])
    return [node for t in terms for node in t["preference"]["matchFields"][0]["values"]], made.status.message


def test_a_node_that_caused_two_failures_is_avoided_and_named() -> None:
    nodes, message = avoided(failed_again(0))
    assert nodes == ["node-0"]
    assert "avoids node-0" in message
    (action,) = (action for action in plan(failed_again(0), NOW).actions if action.name == "job-2-0")
    assert "affinity" not in action.body["spec"], "it caused one failure"


def test_no_node_is_avoided_where_there_is_only_one() -> None:
    nodes, message = avoided(replace(failed_again(0), one_machine=True))
    assert nodes == []
    assert "avoids" not in message


CAUSED_BY_NODES = (Reason.PROGRAM_ERROR, Reason.KILLED, Reason.START_DEADLINE, Reason.NODE_LOST, Reason.POD_DISRUPTED)
OTHERS = (Reason.POD_DELETED, Reason.PREEMPTED, Reason.OUT_OF_MEMORY, Reason.HUNG, Reason.COLLECTIVE_ERROR)


@pytest.mark.parametrize("reason", [*CAUSED_BY_NODES, *OTHERS])
def test_a_node_is_avoided_only_for_failures_that_it_may_have_caused(reason: Reason) -> None:
    past = [
        Failure(attempt=n, rank=0, pod=f"job-{n}-0", node="node-0", reason=reason, message="", time=rfc3339(NOW))
        for n in (1, 2)
    ]
    assert avoided_nodes(DDPJobStatus(attempts=past)) == (("node-0",) if reason in CAUSED_BY_NODES else ())
    assert avoided_nodes(DDPJobStatus(attempts=past[:1])) == ()
