from dataclasses import replace

from builders import NOW, crashed, edited, ended, job, observed, pending, pod, program, reconciled, running
from ddpjob_operator.api.status import Progress
from ddpjob_operator.core.model import NO_LOG
from ddpjob_operator.core.plan import plan

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


def test_a_status_does_not_change_with_the_time_alone() -> None:
    seen = running(job(nodes=1), NOW)
    assert plan(seen, NOW + 1000).status == seen.job.status
