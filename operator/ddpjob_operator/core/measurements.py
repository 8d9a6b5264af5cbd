"""What metrics say about jobs: what a change of a status adds to counters and histograms, and what a waiting gang waits for.

Counters follow from two statuses alone, of which the operator has written the second one. An operator that restarts, or that
becomes the leader, writes nothing about a job that has finished, so it counts no job again.

Every label value comes from a closed set, so the number of series does not grow with the number of jobs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ddpjob_operator.api.names import ConditionType, Phase, Reason
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.failure.classes import KINDS, Kind
from ddpjob_operator.core.times import epoch_seconds

#: Label value of a reason that this release does not know, or that does not belong to the metric.
OTHER: Final = "Other"

SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"

#: Why a gang does not run; the label values of the gauges of waiting gangs.
WAITING_REASONS: Final = (
    *(
        Reason.CREATING,
        Reason.STARTING,
        Reason.STOPPING,
        Reason.BACKING_OFF,
        Reason.IMAGE_PULL,
        Reason.CONTAINER_CONFIG,
    ),
    *(reason for reason, kind in KINDS.items() if kind == Kind.WAITS),
    OTHER,
)


class Quantity(StrEnum):
    """What is measured of jobs; `kube/metrics.py` holds the metric of each."""

    RESTARTS = "restarts"
    FINISHED = "finished"
    LOST_SECONDS = "lost seconds"
    QUEUE_SECONDS = "queue seconds"
    START_SECONDS = "start seconds"
    RECOVERY_SECONDS = "recovery seconds"
    RUN_SECONDS = "run seconds"
    GOODPUT = "goodput"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One addition to a counter, or one observation of a histogram."""

    quantity: Quantity
    value: float
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingGang:
    """Why a gang does not run, as one of WAITING_REASONS, and since when, in seconds since the epoch."""

    reason: str
    since: float


def measurements_between(before: DDPJobStatus, after: DDPJobStatus) -> tuple[Measurement, ...]:
    """What happened between two statuses of a job."""
    return (*_restarts(before, after), *_lost(before, after), *_waits(before, after), *_end(before, after))


def restart_labels() -> Iterable[tuple[str, str]]:
    """Reason and `counted` of each kind of restart, without those that only a restart rule of a user's makes."""
    return [(reason, _counted(kind)) for reason, kind in KINDS.items() if kind in (Kind.COUNTED, Kind.UNCOUNTED)]


def finish_labels() -> Iterable[tuple[str, str]]:
    """Outcome and reason of each kind of end, without those that only a restart rule of a user's makes."""
    failed = [(FAILED, reason) for reason, kind in KINDS.items() if kind in (Kind.COUNTED, Kind.FINAL)]
    return [(SUCCEEDED, Reason.SUCCEEDED), *failed]


def waiting_gang(status: DDPJobStatus) -> WaitingGang | None:
    """What the gang of a job waits for; None if it runs, is suspended or has finished."""
    if status.phase not in (Phase.PENDING, Phase.RESTARTING):
        return None
    restarting = _since(status, ConditionType.RESTARTING)
    since = restarting or status.queued_since or status.start_time
    if since is None:
        return None
    return WaitingGang(reason=status.reason if status.reason in WAITING_REASONS else OTHER, since=epoch_seconds(since))


def _restarts(before: DDPJobStatus, after: DDPJobStatus) -> Iterable[Measurement]:
    """A restart is counted once, as it was decided; better evidence that arrives later does not move it."""
    is_replacement = after.restarts.pod_replacements > before.restarts.pod_replacements
    if (after.attempt == before.attempt and not is_replacement) or after.failure is None:
        return
    if after.restarts.counted > before.restarts.counted:
        yield Measurement(Quantity.RESTARTS, 1, (_known(after.failure.reason), _counted(Kind.COUNTED)))
    elif after.restarts.infrastructure > before.restarts.infrastructure:
        yield Measurement(Quantity.RESTARTS, 1, (_known(after.failure.reason), _counted(Kind.UNCOUNTED)))


def _lost(before: DDPJobStatus, after: DDPJobStatus) -> Iterable[Measurement]:
    lost = after.time.lost_seconds if after.time else 0
    lost -= before.time.lost_seconds if before.time else 0
    if lost > 0:
        ended_by_failure = not after.condition(ConditionType.FAILED) and after.failure is not None
        cause = after.failure.reason if ended_by_failure and after.failure else after.reason
        yield Measurement(Quantity.LOST_SECONDS, lost, (_known(cause),))


def _waits(before: DDPJobStatus, after: DDPJobStatus) -> Iterable[Measurement]:
    if before.scheduled_time is None and after.scheduled_time is not None and after.queued_since is not None:
        yield Measurement(Quantity.QUEUE_SECONDS, _between(after.queued_since, after.scheduled_time))
    if before.running_since is not None or after.running_since is None:
        return
    if after.scheduled_time is not None:
        yield Measurement(Quantity.START_SECONDS, _between(after.scheduled_time, after.running_since))
    if (failed_at := _since(before, ConditionType.RESTARTING)) is not None:
        yield Measurement(Quantity.RECOVERY_SECONDS, _between(failed_at, after.running_since))


def _end(before: DDPJobStatus, after: DDPJobStatus) -> Iterable[Measurement]:
    if before.finished or not after.finished:
        return
    outcome = SUCCEEDED if after.condition(ConditionType.SUCCEEDED) else FAILED
    yield Measurement(Quantity.FINISHED, 1, (outcome, _known(after.reason)))
    yield Measurement(Quantity.RUN_SECONDS, after.active_seconds_before, (outcome,))
    if after.time is not None and after.time.goodput_percent is not None:
        yield Measurement(Quantity.GOODPUT, after.time.goodput_percent / 100, (outcome,))


def _counted(kind: Kind) -> str:
    return "true" if kind == Kind.COUNTED else "false"


def _known(reason: str | None) -> str:
    return reason if reason in frozenset(Reason) else OTHER


def _since(status: DDPJobStatus, type_: ConditionType) -> str | None:
    """Since when a condition has been True; None if it is not."""
    return next((c.last_transition_time for c in status.conditions if c.type == type_ and c.status == "True"), None)


def _between(start: str, end: str) -> float:
    return max(0.0, epoch_seconds(end) - epoch_seconds(start))
