"""A stored spec that this release cannot read: a newer CRD, or an operator that was rolled back."""

from ddpjob_operator.api.names import ConditionType, Reason
from ddpjob_operator.core import render
from ddpjob_operator.core.actions import Plan
from ddpjob_operator.core.decision import Finish
from ddpjob_operator.core.model import Observed


def leave_alone_or_fail(observed: Observed, now: float) -> Plan:
    """Leave a job alone that has ever run, and report why; a job that never ran fails.

    The release that started the job could read its spec, and another one may again: that is no reason to end training.
    """
    status = observed.job.status
    has_run = bool(observed.pods) or status.attempt > 1 or status.condition(ConditionType.CREATED)
    if not has_run:
        end = Finish(succeeded=False, reason=Reason.INVALID_SPEC, message=observed.job.spec_error)
        return Plan(status=render.finished(observed, end, now))
    return Plan(status=render.stalled(observed, Reason.INVALID_SPEC, _message(observed), now))


def _message(observed: Observed) -> str:
    return (
        f"this release of the operator cannot use the spec and leaves the job and its pods as they are:"
        f" {observed.job.spec_error}; change it back, or use the release that started the job, or a newer one"
    )
