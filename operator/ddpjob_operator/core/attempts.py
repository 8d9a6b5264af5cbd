"""Going from one attempt to the next, and the status of each step on the way.

The order is written ahead so that whoever comes after a crash can finish: first the status names the next attempt, then
the old pods are stopped, then the Service points at the new attempt and its pods are created.
"""

from collections.abc import Mapping
from typing import Any

from ddpjob_operator.api.names import ConditionType, Phase
from ddpjob_operator.api.status import DDPJobStatus, Failure, Restarts
from ddpjob_operator.core.conditions import with_conditions
from ddpjob_operator.core.deadlines import active_seconds
from ddpjob_operator.core.model import Observed, Plan
from ddpjob_operator.core.time_spent import accounted, work_lost
from ddpjob_operator.core.times import rfc3339

#: Past attempts that the status remembers.
MAX_PAST_ATTEMPTS = 10
#: What a job's time is put down to depends on these.
_TELL_TIMES_APART = (ConditionType.RESTARTING, ConditionType.SUSPENDED)


def begun(seen: Observed, now: float) -> DDPJobStatus:
    """The observed status with what is set once: when the job was first acted on, and its image."""
    status = seen.job.status
    spec = seen.job.spec
    update: dict[str, Any] = {}
    if status.start_time is None:
        update["start_time"] = rfc3339(now)
    if status.image is None and spec is not None and spec.image is None:
        # The image of pods that exist, where an operator of another release made them a moment ago.
        images = (pod.image for pod in seen.pods if pod.attempt == status.attempt and pod.image)
        update["image"] = next(images, seen.trainer_image)
    return status.model_copy(update=update) if update else status


def showing(
    seen: Observed,
    status: DDPJobStatus,
    now: float,
    *,
    phase: Phase,
    reason: str,
    message: str,
    truths: Mapping[ConditionType, bool],
) -> DDPJobStatus:
    """The status in this phase, for this reason, with these conditions."""
    if any(status.condition(type_) != truth for type_, truth in truths.items() if type_ in _TELL_TIMES_APART):
        status = accounted(status, now)
    shown = status.model_copy(update={"phase": phase, "reason": reason, "message": message})
    return with_conditions(shown, truths, reason=reason, message=message, generation=seen.job.generation, now=now)


def next_attempt(
    seen: Observed,
    now: float,
    *,
    phase: Phase,
    reason: str,
    message: str,
    delay_seconds: float = 0.0,
    keeps_place_in_queue: bool = False,
    restarts: Restarts | None = None,
    failure: Failure | None = None,
) -> Plan:
    """Write down that the next attempt has begun; the pods of this one are then old and get stopped."""
    status = accounted(begun(seen, now), now)
    if failure is not None and failure.checkpoint_step is None:
        status = work_lost(status, now)
    update: dict[str, Any] = {
        "attempt": status.attempt + 1,
        "ready": None,
        "attempt_start_time": None,
        "scheduled_time": None,
        "running_since": None,
        "checkpoint_time": None,
        "retry_time": rfc3339(now + delay_seconds) if delay_seconds else None,
        "queued_since": status.queued_since if keeps_place_in_queue else None,
        "give_backs": status.give_backs + 1 if keeps_place_in_queue else 0,
        "active_seconds_before": round(active_seconds(status, now)),
    }
    if restarts is not None:
        update["restarts"] = restarts
    if failure is not None:
        update |= remembering(status, failure)
    truths = {
        ConditionType.CREATED: False,
        ConditionType.RUNNING: False,
        ConditionType.RESTARTING: phase == Phase.RESTARTING,
        ConditionType.SUSPENDED: phase == Phase.SUSPENDED,
    }
    ahead = status.model_copy(update=update)
    shown = showing(seen, ahead, now, phase=phase, reason=reason, message=message, truths=truths)
    return Plan(status=shown, write_ahead=True)


def remembering(status: DDPJobStatus, failure: Failure) -> dict[str, Any]:
    """The status fields that hold this failure; a refined record replaces the one of the same attempt."""
    others = [past for past in status.attempts if past.attempt != failure.attempt]
    return {"failure": failure, "attempts": [*others, failure][-MAX_PAST_ATTEMPTS:]}


def finished(seen: Observed, status: DDPJobStatus, now: float, *, succeeded: bool, reason: str, message: str) -> Plan:
    """The job's end. A terminal condition never changes again."""
    spent = accounted(status, now)
    if not succeeded:
        spent = work_lost(spent, now)
    ended = spent.model_copy(
        update={
            "completion_time": rfc3339(now),
            "active_seconds_before": round(active_seconds(status, now)),
            "scheduled_time": None,
            "ready": status.ready if succeeded else f"0/{seen.job.spec.nodes}" if seen.job.spec else None,
        }
    )
    truths = {
        ConditionType.RUNNING: False,
        ConditionType.RESTARTING: False,
        ConditionType.SUSPENDED: False,
        ConditionType.SUCCEEDED: succeeded,
        ConditionType.FAILED: not succeeded,
    }
    if succeeded and not status.condition(ConditionType.CREATED):  # they had all ended when they were first seen
        truths[ConditionType.CREATED] = True
    phase = Phase.SUCCEEDED if succeeded else Phase.FAILED
    return Plan(status=showing(seen, ended, now, phase=phase, reason=reason, message=message, truths=truths))
