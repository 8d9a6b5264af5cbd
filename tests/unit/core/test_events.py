"""Events that a change of the status leads to."""

from dataclasses import replace

from ddpjob_operator.api.status import DDPJobStatus, Progress
from ddpjob_operator.core.events import Notice, events_between
from ddpjob_operator.core.model import NO_LOG, Waiting
from ddpjob_operator.core.plan import plan
from support.builders import NOW, broken, crashed, ended, job, observed, pending, pod, program, with_status


def events_of(*moments):
    """The types and reasons of the events of a job that was observed at these moments."""
    before, events = DDPJobStatus(), list[Notice]()
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


def test_restarts_in_place_have_events_with_their_cause() -> None:
    of, before, texts = job(nodes=1, restart={"inPlace": True}), DDPJobStatus(), []
    first, second = ("rank 1 was killed by SIGKILL at step 7", "rank 0 ended with exit code 9 at step 8")
    lines = [Progress(step=5)]
    lines += [Progress(step=9, in_place_restarts=n, in_place_cause=cause) for n, cause in ((1, first), (3, second))]
    for progress in (*lines, Progress(step=20)):  # a line may omit them
        seen = replace(observed(of, pod(of, 0)), progress=progress)
        after = plan(with_status(seen, before), NOW).status
        texts += [e.message for e in events_between(before, after) if e.reason == "RestartedInPlace"]
        before = after
    assert texts == [
        f"Restarted in place, 1 times in attempt 1 so far; the last cause: {first}",
        f"Restarted in place, 3 times in attempt 1 so far; the last cause: {second}",
    ]
    assert before.progress.in_place_cause == second


def test_a_job_that_the_operator_cannot_act_on_has_one_event_that_says_why() -> None:
    of = job(nodes=1)
    seen = observed(of, pod(of, 0))
    before = plan(seen, NOW).status
    unreadable = replace(seen, job=replace(of, spec=None, spec_error="spec.nodes: no number"))
    stalled = plan(with_status(unreadable, before), NOW + 1).status
    (event,) = events_between(before, stalled)
    assert (event.type, event.reason) == ("Warning", "InvalidSpec")
    assert "spec.nodes: no number" in event.message
    assert events_between(stalled, plan(with_status(unreadable, stalled), NOW + 2).status) == ()
