"""Conditions with stable transition times, and the counters that go with them."""

from collections.abc import Mapping

from ddpjob_operator.api.names import ConditionType
from ddpjob_operator.api.status import Condition, DDPJobStatus
from ddpjob_operator.core.times import rfc3339


def with_conditions(
    status: DDPJobStatus,
    truths: Mapping[ConditionType, bool],
    *,
    reason: str,
    message: str,
    generation: int,
    now: float,
) -> DDPJobStatus:
    """The status with these conditions.

    Only what is true has a message. A condition that stays True takes the new reason and message; one that stays False,
    or never was and is not, is left as it is; only a change moves its transition time. So equal decisions make equal statuses.
    """
    conditions = {condition.type: condition for condition in status.conditions}
    for type_, truth in truths.items():
        old = conditions.get(type_)
        was = old is not None and old.status == "True"
        if not truth and not was:
            continue
        conditions[type_] = Condition(
            type=type_,
            status="True" if truth else "False",
            reason=reason,
            message=message if truth else "",
            last_transition_time=old.last_transition_time if old and was == truth else rfc3339(now),
            observed_generation=generation,
        )
    ordered = [conditions[type_] for type_ in ConditionType if type_ in conditions]
    return status.model_copy(update={"conditions": ordered, "observed_generation": generation})
