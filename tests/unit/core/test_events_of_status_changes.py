from dataclasses import replace

from builders import NOW, broken, crashed, ended, job, observed, pending, pod, program, with_status
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.events import events_between
from ddpjob_operator.core.model import NO_LOG, Waiting
from ddpjob_operator.core.plan import plan


def events_of(*moments):
    """The types and reasons of the events of a job that was observed at these moments."""
    before, events = DDPJobStatus(), []
    for seconds, seen in enumerate(moments):
        after = plan(with_status(seen, before), NOW + seconds).status
        events += events_between(before, after)
        before = after
    return [(event.type, event.reason) for event in events]


def test_a_job_without_failures_has_an_event_for_its_start_and_one_for_its_end() -> None:
    of = job(nodes=2)
    some = observed(of, pod(of, 0), pod(of, 1, running=False))
    all_run = observed(of, pod(of, 0), pod(of, 1))
    done = observed(of, ended(of, 0), ended(of, 1), logs={"pod-uid-1-0": NO_LOG})
    assert events_of(observed(of), some, all_run, all_run, done, done) == [
        ("Normal", "Running"),
        ("Normal", "Succeeded"),
    ]


def test_each_failure_and_each_start_has_one_event() -> None:
    running, failure = ("Normal", "Running"), ("Warning", "ProgramError")
    of = program(nodes=1)
    moments = (
        observed(of, pod(of, 0)),
        broken(of, crashed(of)),
        observed(of, pod(of, 0, 2)),
        observed(of, pod(of, 0, 2)),
    )
    assert events_of(*moments) == [running, failure, running]
    of = program(nodes=1, restart={"maxRestarts": 0})
    assert events_of(observed(of, pod(of, 0)), broken(of, crashed(of)), broken(of, crashed(of))) == [running, failure]


def test_an_obstacle_has_one_event_although_its_numbers_change() -> None:
    of = job(nodes=1)
    held = Waiting(reason="Unschedulable", message="0/2 nodes are available")
    waiting = observed(of, pending(of, waiting=held))
    other = observed(of, pending(of, waiting=replace(held, message="0/3 nodes are available")))
    assert events_of(waiting, waiting, other) == [("Warning", "Unschedulable")]
