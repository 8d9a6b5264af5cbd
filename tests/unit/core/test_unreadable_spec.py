from dataclasses import replace

from builders import NOW, job, observed, reconciled, running
from ddpjob_operator.api.names import ConditionType, Phase, Reason
from ddpjob_operator.core.model import Observed
from ddpjob_operator.core.plan import plan

ERROR = "spec.nodes: Input should be a valid integer"


def unreadable(seen: Observed) -> Observed:
    """The same for a release of the operator that cannot read the spec."""
    return replace(seen, job=replace(seen.job, spec=None, spec_error=ERROR))


def test_a_job_that_never_ran_fails() -> None:
    status = plan(unreadable(observed(job(), service=None)), NOW).status
    assert (status.phase, status.reason, status.message) == (Phase.FAILED, Reason.INVALID_SPEC, ERROR)


def test_a_running_job_is_left_alone_and_a_condition_says_why_until_the_spec_can_be_read_again() -> None:
    seen = running(job(nodes=2))
    made = plan(unreadable(seen), NOW)

    assert made.actions == ()
    (stalled,) = [condition for condition in made.status.conditions if condition.type == ConditionType.STALLED]
    assert (stalled.status, stalled.reason) == ("True", Reason.INVALID_SPEC)
    assert ERROR in stalled.message
    assert made.status.model_copy(update={"conditions": []}) == seen.job.status.model_copy(update={"conditions": []})

    readable = replace(reconciled(unreadable(seen)), job=replace(seen.job, status=made.status))
    status = plan(readable, NOW + 60).status
    assert (status.condition(ConditionType.STALLED), status.phase) == (False, Phase.RUNNING)


def test_a_job_between_two_attempts_is_left_alone_too() -> None:
    seen = reconciled(replace(running(job(nodes=1)), pods=()))
    assert seen.job.status.attempt == 2
    assert plan(unreadable(seen), NOW).status.phase == Phase.RESTARTING
