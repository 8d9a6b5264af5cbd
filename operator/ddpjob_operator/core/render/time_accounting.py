"""Where a job's time goes: queued, starting, training, or lost; and the share that was training (goodput).

Whenever a job begins to do something else, and with each new progress, the time until then is added to what the job was
doing. A failure moves the time since the attempt's last checkpoint from training to lost. The time in which a lost pod
was replaced is lost already and is not moved again. Time while suspended is not counted.
"""

from typing import Any

from ddpjob_operator.api.names import ConditionType
from ddpjob_operator.api.status import DDPJobStatus, TimeSpent
from ddpjob_operator.core.times import epoch_seconds, rfc3339

_FIELDS = ("queued_seconds", "starting_seconds", "training_seconds", "lost_seconds")


def with_time_accounted(status: DDPJobStatus, now: float) -> DDPJobStatus:
    """The status with the time up to now added to what, by its clocks, the job was doing."""
    spent = status.time or TimeSpent(until=rfc3339(now))
    # Both ends in whole seconds, so that no fraction is dropped or counted twice; a clock set back adds nothing.
    seconds = max(0, int(now) - int(epoch_seconds(spent.until)))
    field = _time_field(status)
    update: dict[str, Any] = {"until": rfc3339(now), "unsaved_seconds": _unsaved_seconds(status, spent)}
    if field is not None:
        update[field] = getattr(spent, field) + seconds
    if field == "training_seconds":
        update["unsaved_seconds"] += seconds
    return _with_time(status, spent.model_copy(update=update))


def with_work_saved(status: DDPJobStatus) -> DDPJobStatus:
    """The accounted status once all training so far is saved: a failure loses none of it."""
    if status.time is None:
        return status
    return _with_time(status, status.time.model_copy(update={"unsaved_seconds": 0}))


def with_work_lost(status: DDPJobStatus) -> DDPJobStatus:
    """The accounted status after a failure of its attempt: training since the last checkpoint is lost."""
    if status.time is None:
        return status
    lost = status.time.unsaved_seconds or 0
    update = {
        "training_seconds": status.time.training_seconds - lost,
        "lost_seconds": status.time.lost_seconds + lost,
        "unsaved_seconds": 0,
    }
    return _with_time(status, status.time.model_copy(update=update))


def active_seconds(status: DDPJobStatus, now: float) -> float:
    """Seconds that the job has spent on nodes, over all attempts."""
    current = now - epoch_seconds(status.scheduled_time) if status.scheduled_time else 0.0
    return status.active_seconds_before + max(0.0, current)


def _unsaved_seconds(status: DDPJobStatus, spent: TimeSpent) -> int:
    """The seconds of training since the last checkpoint.

    An older release did not store them. Then they are computed from the times of the checkpoint and of the start.
    """
    if spent.unsaved_seconds is not None:
        return spent.unsaved_seconds
    since = status.checkpoint_time or status.running_since
    elapsed = int(epoch_seconds(spent.until)) - int(epoch_seconds(since)) if since else 0
    return min(max(0, elapsed), spent.training_seconds)


def _time_field(status: DDPJobStatus) -> str | None:
    """The field of TimeSpent that the current time counts for; None while the job is suspended."""
    if status.condition(ConditionType.SUSPENDED):
        return None
    if status.running_since:
        return "training_seconds"
    if status.scheduled_time:
        return "starting_seconds"
    if status.attempt_start_time is None and status.condition(ConditionType.RESTARTING):
        return "lost_seconds"
    return "queued_seconds"


def _with_time(status: DDPJobStatus, spent: TimeSpent) -> DDPJobStatus:
    total = sum(getattr(spent, field) for field in _FIELDS)
    goodput = round(100 * spent.training_seconds / total, 1) if total else None
    return status.model_copy(update={"time": spent.model_copy(update={"goodput_percent": goodput})})
