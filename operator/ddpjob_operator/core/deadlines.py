"""The limits on waiting, each with a clock that stands in the status or in the pods.

queue: from the first pod's creation to all of them having a node. start: from there to all of them running; and as long
for an API server that refuses pods. finish: from the first rank's success to the last one's. active: all the time on
nodes, over every attempt; neither queueing nor suspension counts. The limit on silence is in `hang.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ddpjob_operator.api.names import Reason
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.gang import Gang
from ddpjob_operator.core.model import Observed, Pod
from ddpjob_operator.core.times import duration, epoch_seconds
from ddpjob_operator.core.waiting import explain


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A limit that is running."""

    at: float
    """When it passes, in seconds since the epoch."""
    reason: Reason
    message: str
    """What has happened when it has passed."""
    ends_job: bool
    """Whether it ends the job rather than the attempt."""
    late: Pod | None = None
    """The pod that it waits for, if it is one."""


def active_seconds(status: DDPJobStatus, now: float) -> float:
    """Seconds that the job has spent on nodes, over all attempts."""
    current = now - epoch_seconds(status.scheduled_time) if status.scheduled_time else 0.0
    return status.active_seconds_before + max(0.0, current)


def next_deadline(seen: Observed, spec: DDPJobSpec, status: DDPJobStatus, gang: Gang) -> Deadline | None:
    """The running limit that passes first; None while none runs."""
    running = [*_to_finish(spec, gang), *_to_be_active(spec, status)]
    if not status.running_since:
        running += _to_start(seen, spec, status, gang)
    return min(running, key=lambda deadline: deadline.at, default=None)


def _to_start(seen: Observed, spec: DDPJobSpec, status: DDPJobStatus, gang: Gang) -> Iterator[Deadline]:
    limits = spec.deadlines
    reason, why = explain(seen, gang)
    if limits.queue_seconds is not None and status.queued_since and not status.scheduled_time:
        yield Deadline(
            at=epoch_seconds(status.queued_since) + limits.queue_seconds,
            reason=Reason.QUEUE_DEADLINE,
            message=f"the gang found no place within deadlines.queueSeconds ({duration(limits.queue_seconds)}): {why}",
            ends_job=True,
        )
    never_ran = status.active_seconds_before == 0  # a job of weeks waits for an admission webhook to come back
    if reason == Reason.POD_REJECTED and seen.is_refused and never_ran and status.attempt_start_time:
        yield Deadline(
            at=epoch_seconds(status.attempt_start_time) + limits.start_seconds,
            reason=reason,
            message=f"{why}, for longer than deadlines.startSeconds ({duration(limits.start_seconds)})",
            ends_job=True,
        )
    if status.scheduled_time:
        named = reason in (Reason.IMAGE_PULL, Reason.CONTAINER_CONFIG)
        yield Deadline(
            at=epoch_seconds(status.scheduled_time) + limits.start_seconds,
            reason=reason if named else Reason.START_DEADLINE,
            message=f"{why}; deadlines.startSeconds is {duration(limits.start_seconds)}",
            ends_job=False,
            late=next(iter(gang.starting), None),
        )


def _to_finish(spec: DDPJobSpec, gang: Gang) -> Iterator[Deadline]:
    late, first = gang.unfinished, gang.first_success
    if late and first is not None:
        limit = spec.deadlines.finish_seconds
        yield Deadline(
            at=first + limit,
            reason=Reason.FINISH_DEADLINE,
            message=f"it still ran deadlines.finishSeconds ({duration(limit)}) after the first rank had ended well",
            ends_job=False,
            late=late[0],
        )


def _to_be_active(spec: DDPJobSpec, status: DDPJobStatus) -> Iterator[Deadline]:
    limit = spec.deadlines.active_seconds
    if limit is not None and status.scheduled_time:
        yield Deadline(
            at=epoch_seconds(status.scheduled_time) + max(0, limit - status.active_seconds_before),
            reason=Reason.ACTIVE_DEADLINE,
            message=f"the job was active for deadlines.activeSeconds ({duration(limit)})",
            ends_job=True,
        )
