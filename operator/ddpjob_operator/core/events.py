"""What is worth an Event when a job's status changes.

Events are for people who look at a job for the first time (`kubectl describe`): few, and each says something that the
status no longer does. A job that runs well has two, of its start and of its end.
"""

from dataclasses import dataclass
from typing import Literal

from ddpjob_operator.api.names import ConditionType, Reason
from ddpjob_operator.api.status import DDPJobStatus, Failure
from ddpjob_operator.core.failure.messages import failure_sentence

#: What a waiting job should be looked at for.
_OBSTACLES = frozenset(
    {
        Reason.UNSCHEDULABLE,
        Reason.QUOTA_EXCEEDED,
        Reason.POD_REJECTED,
        Reason.IMAGE_PULL,
        Reason.CONTAINER_CONFIG,
        Reason.TERMINATING_TOO_LONG,
        Reason.GANG_GIVEN_BACK,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """The content of one Event."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def events_between(before: DDPJobStatus, after: DDPJobStatus) -> tuple[Notice, ...]:
    """What happened between two statuses of a job, in the order in which it did."""
    notices: list[Notice] = []
    if (failure := _new_failure(before, after)) is not None:
        notices.append(Notice(type="Warning", reason=failure.reason, message=failure_sentence(failure)))
    if (restarts := _restarts_in_place(after)) > _restarts_in_place(before) and after.attempt == before.attempt:
        cause = (after.progress and after.progress.in_place_cause) or "the program does not report why"
        text = f"Restarted in place, {restarts} times in attempt {after.attempt} so far; the last cause: {cause}"
        notices.append(Notice(type="Warning", reason=Reason.RESTARTED_IN_PLACE, message=text))
    reason, message = after.reason or "", after.message or ""
    if _turned(before, after, ConditionType.SUCCEEDED):
        notices.append(Notice(type="Normal", reason=reason, message=message))
    elif _turned(before, after, ConditionType.FAILED):
        notices = [Notice(type="Warning", reason=reason, message=message)]  # which holds the failure's sentence
    elif _turned(before, after, ConditionType.SUSPENDED):
        notices.append(Notice(type="Normal", reason=reason, message=message))
    elif _turned(before, after, ConditionType.RUNNING):
        notices.append(Notice(type="Normal", reason=Reason.RUNNING, message=f"attempt {after.attempt} runs"))
    elif reason == Reason.RESIZED and after.attempt > before.attempt:
        notices.append(Notice(type="Normal", reason=reason, message=message))
    elif _turned(before, after, ConditionType.STALLED):
        stalled = next(condition for condition in after.conditions if condition.type == ConditionType.STALLED)
        notices.append(Notice(type="Warning", reason=stalled.reason, message=stalled.message))
    elif reason in _OBSTACLES and before.reason != reason:
        notices.append(Notice(type="Warning", reason=reason, message=message))
    return tuple(notices)


def _restarts_in_place(status: DDPJobStatus) -> int:
    return (status.progress and status.progress.in_place_restarts) or 0


def _turned(before: DDPJobStatus, after: DDPJobStatus, type_: ConditionType) -> bool:
    return after.condition(type_) and not before.condition(type_)


def _new_failure(before: DDPJobStatus, after: DDPJobStatus) -> Failure | None:
    """The failure, if it is new, or differs from the one recorded before in its class or in whether it only replaced pods."""
    failure, known = after.failure, before.failure
    if failure is None:
        return None
    is_known = known is not None and all(
        getattr(known, field) == getattr(failure, field) for field in ("attempt", "reason", "replaced")
    )
    is_another = after.restarts.pod_replacements > before.restarts.pod_replacements
    return None if is_known and not is_another else failure
