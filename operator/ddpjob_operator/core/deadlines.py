"""The limits on waiting, each with a clock that stands in the status.

queue: from all pods existing to all of them having a node. start: from there to all of them running. active: all the
time on nodes, over every attempt; neither queueing nor suspension counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.times import duration, epoch_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A limit that is running."""

    at: float
    """When it passes, in seconds since the epoch."""
    message: str
    """What has happened when it has passed."""
    ends_job: bool
    """Whether it ends the job rather than the attempt."""


def active_seconds(status: DDPJobStatus, now: float) -> float:
    """Seconds that the job has spent on nodes, over all attempts."""
    current = now - epoch_seconds(status.scheduled_time) if status.scheduled_time else 0.0
    return status.active_seconds_before + max(0.0, current)


def next_deadline(spec: DDPJobSpec, status: DDPJobStatus) -> Deadline | None:
    """The running limit that passes first; None while none runs."""
    return min(_running(spec, status), key=lambda deadline: deadline.at, default=None)


def _running(spec: DDPJobSpec, status: DDPJobStatus) -> Iterator[Deadline]:
    limits = spec.deadlines
    if limits.queue_seconds is not None and status.attempt_start_time and not status.scheduled_time:
        yield Deadline(
            at=epoch_seconds(status.attempt_start_time) + limits.queue_seconds,
            message=f"the gang found no place on nodes within deadlines.queueSeconds ({limits.queue_seconds})",
            ends_job=True,
        )
    if status.scheduled_time and not status.running_since:
        yield Deadline(
            at=epoch_seconds(status.scheduled_time) + limits.start_seconds,
            message=f"not all pods ran within deadlines.startSeconds ({limits.start_seconds}) of having a node",
            ends_job=False,
        )
    if limits.active_seconds is not None and status.scheduled_time:
        left = limits.active_seconds - status.active_seconds_before
        yield Deadline(
            at=epoch_seconds(status.scheduled_time) + max(0, left),
            message=f"the job was active for deadlines.activeSeconds ({duration(limits.active_seconds)})",
            ends_job=True,
        )
