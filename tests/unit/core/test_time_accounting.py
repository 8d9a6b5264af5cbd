from dataclasses import replace

from builders import NOW, TRACEBACK, ended, job, observed, pod, program, running, with_status
from ddpjob_operator.api.status import Progress
from ddpjob_operator.core.plan import plan


def seconds(status):
    spent = status.time
    return (spent.queued_seconds, spent.starting_seconds, spent.training_seconds, spent.lost_seconds)


def lived(of, *steps):
    """The status after the job was seen at these moments with these pods, and what else there was to see."""
    seen = observed(of)
    for at, pods, more in steps:
        seen = replace(seen, pods=pods, **more)
        seen = with_status(seen, plan(seen, at).status)
    return seen.job.status


def test_a_life_without_failures() -> None:
    of = job(nodes=1)
    waiting = pod(of, 0, node=None, running=False, phase="Pending")
    placed = pod(of, 0, running=False, phase="Pending")
    status = lived(
        of,
        (NOW, (), {}),
        (NOW + 5, (waiting,), {}),
        (NOW + 20, (placed,), {}),
        (NOW + 30, (pod(of, 0),), {}),
        (NOW + 200, (ended(of, 0),), {"logs": {"pod-uid-1-0": ""}}),
    )

    assert seconds(status) == (20, 10, 170, 0)
    assert status.time.goodput_percent == 85.0


def test_a_failure_loses_what_was_trained_since_the_last_checkpoint_and_the_time_to_the_next_attempt() -> None:
    of = program(nodes=1)
    saved = {"progress": Progress(step=10, checkpoint_step=10)}
    status = lived(
        of,
        (NOW, (pod(of, 0),), {}),
        (NOW + 100, (pod(of, 0),), saved),
        (NOW + 130, (ended(of, 0, code=1, message=TRACEBACK),), {"progress": None}),
        (NOW + 137, (ended(of, 0, code=1, message=TRACEBACK),), {}),
    )

    assert seconds(status) == (0, 0, 100, 37)


def test_an_old_checkpoint_does_not_save_a_later_attempt() -> None:
    of = program(nodes=1)
    old = Progress(step=10, checkpoint_step=10)
    status = lived(
        of,
        (NOW, (pod(of, 0),), {"progress": old}),
        (NOW + 50, (ended(of, 0, code=1, message=TRACEBACK),), {"progress": None}),
        (NOW + 50, (pod(of, 0, 2),), {}),
        (NOW + 60, (pod(of, 0, 2),), {"progress": Progress(step=11, checkpoint_step=10)}),
        (NOW + 90, (ended(of, 0, 2, code=1, message=TRACEBACK),), {}),
    )

    assert status.time.lost_seconds == 50 + 40


def test_suspension_is_nobodys_time() -> None:
    seen = running(job(nodes=1), NOW)
    suspended = replace(seen, job=replace(seen.job, spec=job(nodes=1, suspend=True).spec))
    suspended = replace(with_status(suspended, plan(suspended, NOW + 50).status), pods=())
    suspended = with_status(suspended, plan(suspended, NOW + 60).status)
    resumed = replace(suspended, job=replace(suspended.job, spec=job(nodes=1).spec))
    status = plan(resumed, NOW + 1000).status

    assert seconds(status) == (0, 0, 50, 0)


def test_time_alone_writes_nothing() -> None:
    seen = running(job(nodes=1), NOW)

    assert plan(seen, NOW + 1000).status == seen.job.status
