"""Ranks that have ended before a new pod joined them, and how long they wait for it."""

from dataclasses import replace

import pytest

from ddpjob_operator.api.names import Phase, Reason
from ddpjob_operator.api.status import Progress
from ddpjob_operator.core.actions import ReadLog
from ddpjob_operator.core.events import events_between
from ddpjob_operator.core.model import NO_LOG, Waiting
from ddpjob_operator.core.plan import plan
from support.builders import ended, job, reconciled, supervised
from support.gangs_in_place import IN_PLACE, JOB, LATER, after_loss, running_gang, with_pods

PULLED = Waiting(reason="ErrImagePull", message="the image has 6.5 GB")


@pytest.mark.parametrize("of", [JOB, job(nodes=3, restart=IN_PLACE, command=["python", "-m", "ddpjob.launch", "x.py"])])
@pytest.mark.parametrize("is_created", [False, True], ids=["the lost pod still stops", "the image is pulled"])
def test_ranks_that_have_waited_too_long_for_a_new_pod_are_no_failure_of_the_program(of, is_created) -> None:
    """Five minutes are not enough for each image and each node. The loss has been counted."""
    lost = after_loss(running_gang(of))
    if is_created:
        lost = with_pods(lost, replace(supervised(lost.job, 1), running=False, phase="Pending", waiting=PULLED))
    ends = [ended(lost.job, rank, code=69, is_supervised=True, ended_seen=LATER + 300) for rank in (0, 2)]
    status = plan(with_pods(lost, *ends), LATER + 302).status
    assert (status.attempt, status.reason, status.phase) == (2, Reason.POD_DELETED, Phase.RESTARTING)
    assert "its new pod did not join as long as the others waited for it" in status.message
    assert (status.restarts.counted, status.restarts.infrastructure, status.retry_time) == (0, 1, None)


@pytest.mark.parametrize(("num_joined", "reason"), [(None, Reason.POD_DELETED), (1, Reason.COLLECTIVE_ERROR)])
def test_a_new_pod_that_ran_and_had_not_joined_when_the_wait_ended_is_counted_once(num_joined, reason) -> None:
    """Its image took most of the five minutes, and its imports the rest."""
    lost = after_loss()
    back = reconciled(with_pods(lost, supervised(lost.job, 1)), LATER + 290)
    ends = [ended(JOB, rank, code=69, is_supervised=True, ended_seen=LATER + 301) for rank in (0, 2)]
    reported = Progress(step=9, joined_replacements=num_joined)
    status = plan(replace(with_pods(back, *ends), progress=reported), LATER + 303).status
    assert (status.attempt, status.reason) == (2, reason)
    assert status.restarts.counted == (1 if num_joined else 0)


def test_ranks_that_lose_another_one_after_the_new_pod_has_run_are_a_failure_of_the_program() -> None:
    lost = after_loss()
    back = reconciled(with_pods(lost, supervised(lost.job, 1)), LATER + 5)
    ends = [ended(JOB, rank, code=69, is_supervised=True, ended_seen=LATER + 400) for rank in (0, 2)]
    status = plan(with_pods(back, *ends), LATER + 402).status
    assert (status.attempt, status.reason, status.restarts.counted) == (2, Reason.COLLECTIVE_ERROR, 1)


def done_before(seen, *, at=LATER + 5, num_joined=None):
    """Ranks 0 and 2 have ended with exit code 0, and rank 0's log is read."""
    log = replace(NO_LOG, progress=Progress(step=9, joined_replacements=num_joined))
    both = [ended(JOB, rank, is_supervised=True, ended_seen=at) for rank in (0, 2)]
    return replace(with_pods(seen, *both), logs={both[0].uid: log})


def successor(lost, **changes):
    return with_pods(lost, supervised(lost.job, 1, **changes))


STARTING = {"running": False, "phase": "Pending"}


@pytest.mark.parametrize("of", [lambda it: it, lambda it: successor(it, **STARTING)], ids=["not created", "starting"])
def test_no_new_pod_joins_ranks_that_have_ended_with_exit_code_0(of) -> None:
    """The pod was lost just before they ended. It would wait for them for minutes."""
    lost = after_loss()
    made = plan(done_before(of(lost)), LATER + 6)
    status = made.status
    assert (status.attempt, status.phase, status.reason) == (2, Phase.RESTARTING, Reason.POD_DELETED)
    assert "2 of 3 ranks ended with exit code 0 before its new pod joined them" in status.message
    assert (status.restarts.infrastructure, status.restarts.counted) == (1, 0), "the loss was counted before"
    assert [(past.attempt, past.replaced) for past in status.attempts] == [(1, True), (1, False)]
    (notice,) = events_between(lost.job.status, status)
    assert (notice.type, notice.reason, notice.message) == ("Warning", Reason.POD_DELETED, status.message)


def test_a_new_pod_that_waits_for_ranks_that_are_done_is_not_waited_for() -> None:
    """It ran before they ended, and had not joined them."""
    lost = after_loss()
    seen = done_before(reconciled(successor(lost), LATER + 1))
    early = plan(seen, LATER + 34)
    assert (early.status.attempt, early.wake_at) == (1, LATER + 35)
    assert plan(seen, LATER + 35).status.attempt == 2
    unread = plan(replace(seen, logs={}), LATER + 35)
    assert (unread.status.attempt, unread.lookups) == (1, (ReadLog(pod="job-1-0", uid="pod-uid-1-0"),))
    assert plan(replace(seen, logs={"pod-uid-1-0": NO_LOG}), LATER + 35).status.attempt == 2


@pytest.mark.parametrize(("silent_seconds", "attempt"), [(0.0, 1), (0.1, 2), (12.0, 2)])
def test_whether_a_new_pod_has_joined_is_not_known_while_nobody_reads_the_log_of_rank_0(
    silent_seconds, attempt
) -> None:
    """It may still export the model. Where its log is read and says nothing, it is itself a new pod that waits."""
    lost = after_loss()
    seen = reconciled(successor(lost), LATER + 1)
    seen = with_pods(seen, ended(JOB, 2, is_supervised=True, ended_seen=LATER + 5))
    status = plan(replace(seen, silent_seconds=silent_seconds), LATER + 40).status
    assert status.attempt == attempt


def test_a_new_pod_that_has_joined_may_take_as_long_to_end_as_any_other() -> None:
    """Rank 0 has reported that it joined."""
    lost = after_loss()
    seen = done_before(reconciled(successor(lost), LATER + 1), num_joined=1)
    limit = JOB.spec.deadlines.finish_seconds
    assert plan(seen, LATER + 5 + limit - 1).status.attempt == 1
    assert plan(seen, LATER + 5 + limit).status.failure.reason == Reason.FINISH_DEADLINE


def test_a_job_whose_new_pod_has_joined_and_ended_has_succeeded() -> None:
    lost = after_loss()
    done = ended(
        lost.job, 1, is_supervised=True, replacement=1, name="job-1-1-r1", uid="uid of job-1-1-r1", ended_seen=LATER
    )
    assert plan(done_before(with_pods(lost, done)), LATER + 500).status.phase == Phase.SUCCEEDED
