"""What metrics say about jobs, at each change of a status."""

from dataclasses import replace

import pytest

from ddpjob_operator.api.names import Phase, Reason
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.measurements import (
    OTHER,
    WAITING_REASONS,
    Measurement,
    Quantity,
    finish_labels,
    measurements_between,
    restart_labels,
    waiting_gang,
)
from ddpjob_operator.core.model import NO_LOG, Observed, Waiting
from ddpjob_operator.core.plan import plan
from support.builders import NOW, TRACEBACK, broken, ended, job, observed, pod, program, running, with_status


def measured(*moments: tuple[float, Observed]) -> list[tuple[Quantity, float, tuple[str, ...]]]:
    """What is measured of a job that is seen at these moments, in seconds since NOW."""
    before, found = DDPJobStatus(), list[Measurement]()
    for seconds, seen in moments:
        after = plan(with_status(seen, before), NOW + seconds).status
        found += measurements_between(before, after)
        before = after
    return [(m.quantity, round(m.value, 3), m.labels) for m in found]


def test_a_job_that_succeeds() -> None:
    of = job(nodes=2)
    waits = observed(of, pod(of, 0, node=None, running=False), pod(of, 1, node=None, running=False))
    starts = observed(of, pod(of, 0), pod(of, 1, running=False))
    runs = observed(of, pod(of, 0), pod(of, 1))
    done = observed(of, ended(of, 0), ended(of, 1), logs={"pod-uid-1-0": NO_LOG})
    assert measured((0, waits), (60, starts), (70, runs), (370, done), (400, done)) == [
        (Quantity.QUEUE_SECONDS, 60, ()),
        (Quantity.START_SECONDS, 10, ()),
        (Quantity.FINISHED, 1, ("succeeded", "Succeeded")),
        (Quantity.RUN_SECONDS, 310, ("succeeded",)),
        (Quantity.GOODPUT, 0.811, ("succeeded",)),
    ]


def test_a_restart_costs_the_training_since_the_checkpoint_and_the_wait_for_the_next_attempt() -> None:
    of = program(nodes=1)
    failed = broken(of, ended(of, 0, code=1, message=TRACEBACK))
    stops = observed(of, ended(of, 0, code=1, message=TRACEBACK))
    again = observed(of, pod(of, 0, 2))
    assert measured((0, observed(of, pod(of, 0))), (100, failed), (101, stops), (130, again)) == [
        (Quantity.QUEUE_SECONDS, 0, ()),
        (Quantity.START_SECONDS, 0, ()),
        (Quantity.RESTARTS, 1, ("ProgramError", "true")),
        (Quantity.LOST_SECONDS, 100, ("ProgramError",)),
        (Quantity.LOST_SECONDS, 1, ("ProgramError",)),
        (Quantity.QUEUE_SECONDS, 29, ()),
        (Quantity.START_SECONDS, 0, ()),
        (Quantity.RECOVERY_SECONDS, 30, ()),
    ]


def test_an_infrastructure_failure_is_a_restart_that_does_not_count() -> None:
    of = program(nodes=1)
    preempted = broken(of, pod(of, 0, disruption="PreemptionByScheduler: preempted", deletion_deadline=NOW + 30))
    gone = replace(preempted, pods=(), vanished=preempted.pods)
    found = measured((0, observed(of, pod(of, 0))), (100, gone))
    assert (Quantity.RESTARTS, 1, ("Preempted", "false")) in found


def test_a_job_that_failed_is_counted_once() -> None:
    of = program(nodes=1, restart={"maxRestarts": 0})
    failed = broken(of, ended(of, 0, code=1, message=TRACEBACK))
    found = measured((0, observed(of, pod(of, 0))), (100, failed), (200, failed))
    assert [m for m in found if m[0] == Quantity.FINISHED] == [(Quantity.FINISHED, 1, ("failed", "ProgramError"))]
    assert [m for m in found if m[0] == Quantity.LOST_SECONDS] == [(Quantity.LOST_SECONDS, 100, ("ProgramError",))]


def test_every_value_of_a_label_comes_from_a_closed_set() -> None:
    before = running(program(nodes=1)).job.status
    failure = {"attempt": 1, "reason": "NewerRelease", "time": "2027-01-15T08:00:00Z"}
    after = DDPJobStatus.model_validate(
        {
            **before.as_json(),
            "attempt": 2,
            "failure": failure,
            "restarts": {"counted": 1},
            "conditions": [
                {"type": "Failed", "status": "True", "reason": "Novel", "lastTransitionTime": failure["time"]}
            ],
            "reason": "Novel",
        }
    )
    assert {m.labels for m in measurements_between(before, after) if m.quantity != Quantity.RUN_SECONDS} == {
        (OTHER, "true"),
        ("failed", OTHER),
    }


def test_series_that_exist_from_the_start() -> None:
    assert ("ProgramError", "true") in restart_labels()
    assert ("Preempted", "false") in restart_labels()
    assert ("succeeded", "Succeeded") in finish_labels()
    assert {reason for reason, _ in restart_labels()} <= set(Reason)
    assert not {labels for labels in finish_labels() if labels[1] == Reason.PREEMPTED}


@pytest.mark.parametrize(
    ("reason", "label"),
    [*((name, name) for name in ("Unschedulable", "Queued", "QuotaExceeded", "BackingOff")), ("NewerRelease", OTHER)],
)
def test_a_waiting_gang_has_a_reason_of_the_closed_set(reason: str, label: str) -> None:
    status = DDPJobStatus(phase=Phase.PENDING, reason=reason, queued_since="2027-01-15T08:00:00Z")
    gang = waiting_gang(status)
    assert (gang.reason, gang.since) == (label, NOW)
    assert gang.reason in WAITING_REASONS


def test_a_gang_that_restarts_waits_since_its_failure() -> None:
    of = program(nodes=1)
    held = Waiting(reason="Unschedulable", message="0/2 nodes are available")
    failed = plan(broken(of, ended(of, 0, code=1, message=TRACEBACK)), NOW + 100).status
    seen = observed(of, pod(of, 0, 2, node=None, running=False, waiting=held))
    gang = waiting_gang(plan(with_status(seen, failed), NOW + 160).status)
    assert (gang.reason, gang.since) == ("Unschedulable", NOW + 100)


@pytest.mark.parametrize("phase", [None, Phase.RUNNING, Phase.SUSPENDED, Phase.SUCCEEDED, Phase.FAILED])
def test_no_other_gang_waits(phase: str | None) -> None:
    assert waiting_gang(DDPJobStatus(phase=phase, queued_since="2027-01-15T08:00:00Z")) is None


def test_a_clock_that_is_set_back_measures_nothing_below_zero() -> None:
    before = DDPJobStatus(queued_since="2027-01-15T08:00:10Z")
    after = before.model_copy(update={"scheduled_time": "2027-01-15T08:00:00Z"})
    assert measurements_between(before, after) == (Measurement(Quantity.QUEUE_SECONDS, 0.0),)
