from dataclasses import replace

from builders import NOW, TRACEBACK, broken, ended, job, observed, pod, program, with_status
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.events import events_between
from ddpjob_operator.core.model import Waiting
from ddpjob_operator.core.plan import plan


def told(*moments):
    """The types and reasons of the events of a job that was seen at these moments."""
    before, notices = DDPJobStatus(), []
    for seconds, seen in enumerate(moments):
        after = plan(with_status(seen, before), NOW + seconds).status
        notices += events_between(before, after)
        before = after
    return [(notice.type, notice.reason) for notice in notices]


def test_a_good_life_has_two() -> None:
    of = job(nodes=2)
    some = observed(of, pod(of, 0), pod(of, 1, running=False))
    all_run = observed(of, pod(of, 0), pod(of, 1))
    done = observed(of, ended(of, 0), ended(of, 1), logs={"pod-uid-1-0": ""})

    assert told(observed(of), some, all_run, all_run, done, done) == [("Normal", "Running"), ("Normal", "Succeeded")]


def test_a_failure_and_each_new_start_are_told() -> None:
    of = program(nodes=1)
    failed = broken(of, ended(of, 0, code=1, message=TRACEBACK))
    again = observed(of, pod(of, 0, 2))

    events = told(observed(of, pod(of, 0)), failed, again, again)
    assert events == [("Normal", "Running"), ("Warning", "ProgramError"), ("Normal", "Running")]


def test_a_final_failure_is_told_once() -> None:
    of = program(nodes=1, restart={"maxRestarts": 0})
    failed = broken(of, ended(of, 0, code=1, message=TRACEBACK))

    assert told(observed(of, pod(of, 0)), failed, failed)[1:] == [("Warning", "ProgramError")]


def test_an_obstacle_is_told_once() -> None:
    of = job(nodes=1)
    held = Waiting(reason="Unschedulable", message="0/2 nodes are available")
    waiting = observed(of, pod(of, 0, node=None, running=False, waiting=held))
    other = replace(waiting, pods=(replace(waiting.pods[0], waiting=replace(held, message="0/3 nodes are available")),))

    assert told(waiting, waiting, other) == [("Warning", "Unschedulable")]
