"""status.time: how long a job was queued, started, trained, and lost time."""

from dataclasses import replace

import pytest

from ddpjob_operator.api.status import Progress
from ddpjob_operator.core.model import NO_LOG, Waiting
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.times import rfc3339
from support.builders import (
    NOW,
    crashed,
    edited,
    ended,
    job,
    observed,
    pending,
    pod,
    program,
    reconciled,
    running,
    supervised,
    updated,
)

SINGLE = program(nodes=1)
SAVED = Progress(step=10, checkpoint_step=10)


def seconds(status):
    spent = status.time
    return (spent.queued_seconds, spent.starting_seconds, spent.training_seconds, spent.lost_seconds)


def status_after(of, *moments):
    """The status after the job was observed at these times with these pods and, where given, this progress."""
    seen = observed(of, logs={"pod-uid-1-0": NO_LOG})
    for at, pod_, *progress in moments:
        seen = replace(seen, pods=(pod_,) if pod_ else (), progress=progress[0] if progress else None)
        seen = reconciled(seen, NOW + at)
    return seen.job.status


def test_the_time_of_a_job_without_failures() -> None:
    of = job(nodes=1)
    placed = pod(of, 0, running=False, phase="Pending")
    status = status_after(of, (0, None), (5, pending(of)), (20, placed), (30, pod(of)), (200, ended(of)))
    assert seconds(status) == (20, 10, 170, 0)
    assert status.time.goodput_percent == 85.0


def test_a_failure_loses_the_training_since_the_last_checkpoint_and_the_time_to_the_next_attempt() -> None:
    failed = crashed(SINGLE)
    status = status_after(SINGLE, (0, pod(SINGLE)), (100, pod(SINGLE), SAVED), (130, failed), (137, failed))
    assert seconds(status) == (0, 0, 100, 37)


def test_the_checkpoint_of_an_earlier_attempt_does_not_shorten_the_loss_of_a_later_one() -> None:
    second = pod(SINGLE, 0, 2)
    status = status_after(
        SINGLE,
        (0, pod(SINGLE), SAVED),
        (50, crashed(SINGLE)),
        (50, second),
        (60, second, Progress(step=11, checkpoint_step=10)),
        (90, crashed(SINGLE, 0, 2)),
    )
    assert status.time.lost_seconds == 50 + 40


def test_the_time_of_a_suspension_counts_for_nothing() -> None:
    seen = reconciled(edited(running(job(nodes=1), NOW), suspend=True), NOW + 50)
    seen = reconciled(replace(seen, pods=()), NOW + 60)
    assert seconds(plan(edited(seen, suspend=False), NOW + 1000).status) == (0, 0, 50, 0)


@pytest.mark.parametrize(("progress", "lost"), [(None, 100 + 70), (SAVED, 60 + 70)])
def test_after_a_replaced_pod_a_failure_loses_the_training_before_the_replacement_too(progress, lost) -> None:
    """Rank 1 is lost after 100 s and runs again after 130 s; the newest checkpoint, if there is one, was saved after 40 s."""
    of = job(nodes=2, restart={"inPlace": True})
    seen = reconciled(observed(of, *(supervised(of, rank) for rank in range(2))), NOW)
    seen = reconciled(replace(seen, progress=progress), NOW + 40)
    replaced = reconciled(replace(seen, pods=seen.pods[:1]), NOW + 100)
    assert [pod.rank for pod in replaced.job.status.replaced_pods] == [1]
    back = replace(replaced, pods=(*replaced.pods, supervised(replaced.job, 1)))
    back = reconciled(reconciled(back, NOW + 130), NOW + 130)
    assert (back.job.status.time.training_seconds, back.job.status.time.lost_seconds) == (100, 30)
    failed = replace(back, pods=tuple(crashed(back.job, rank) for rank in range(2)))
    status = plan(replace(failed, logs={pod.uid: NO_LOG for pod in failed.pods}), NOW + 200).status
    assert (status.attempt, status.time.lost_seconds) == (2, 30 + lost)
    assert status.time.training_seconds == 170 - lost
    assert status.time.unsaved_seconds == 0


@pytest.mark.parametrize(
    ("edit", "reason"), [({}, "GangGivenBack"), ({"nodes": 3}, "Resized"), ({"suspend": True}, "Suspended")]
)
@pytest.mark.parametrize(("progress", "lost"), [(None, 100), (SAVED, 60)])
def test_ranks_that_wait_for_a_replaced_pod_save_nothing_more(progress, lost, edit, reason) -> None:
    """Rank 1 is lost after 100 s, and its successor finds no node; the newest checkpoint, if there is one, was saved after 40 s."""
    of = job(nodes=2, restart={"inPlace": True})
    seen = reconciled(observed(of, *(supervised(of, rank) for rank in range(2))), NOW)
    seen = reconciled(replace(seen, progress=progress), NOW + 40)
    replaced = reconciled(replace(seen, pods=seen.pods[:1]), NOW + 100)
    no_node = Waiting(reason="Unschedulable", message="0/2 nodes are available")
    unplaced = supervised(replaced.job, 1, node=None, running=False, phase="Pending", waiting=no_node)
    waiting = reconciled(replace(replaced, pods=(*replaced.pods, unplaced)), NOW + 101)
    status = plan(edited(waiting, **edit), NOW + 150).status
    assert (status.attempt, status.reason) == (2, reason)
    assert (status.time.training_seconds, status.time.unsaved_seconds) == (100 - lost, 0)


def test_a_job_of_a_release_that_did_not_count_unsaved_training_loses_what_its_clocks_say() -> None:
    seen = running(SINGLE, NOW)
    old = updated(seen, time=seen.job.status.time.model_copy(update={"unsaved_seconds": None}))
    failed = replace(old, pods=(crashed(SINGLE),), logs={"pod-uid-1-0": NO_LOG})
    assert seconds(plan(failed, NOW + 50).status) == (0, 0, 0, 50)
    spent = old.job.status.time.model_copy(update={"training_seconds": 40, "until": rfc3339(NOW + 40)})
    saved = updated(failed, time=spent, checkpoint_time=rfc3339(NOW + 30))
    assert seconds(plan(saved, NOW + 50).status) == (0, 0, 30, 20)
