"""Jobs that the operator leaves alone: another controller runs them, or this release cannot read their spec."""

from dataclasses import replace

import pytest

from ddpjob_operator.api.names import ConditionType, Phase, Reason
from ddpjob_operator.core.actions import Plan
from ddpjob_operator.core.model import Observed
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.records import job_of
from support.builders import NOW, job, observed, pod, reconciled, running


@pytest.mark.parametrize("deleting", [False, True])
def test_the_operator_leaves_the_pods_and_the_status_of_another_controller_alone(deleting: bool) -> None:
    of = replace(job(nodes=2, managedBy="kueue.x-k8s.io/multikueue", suspend=True), deleting=deleting)
    assert plan(observed(of, pod(of)), NOW) == Plan.nothing(of)


def test_a_job_of_another_controller_is_left_alone_although_this_release_cannot_read_its_spec() -> None:
    """A release that had been rolled back failed such jobs with InvalidSpec."""
    metadata = {"namespace": "default", "name": "job", "uid": "job-uid", "resourceVersion": "1"}
    of = job_of({"metadata": metadata, "spec": {"managedBy": "kueue.x-k8s.io/multikueue", "nodes": "newer"}})
    assert of.spec is None
    assert plan(observed(of, service=None), NOW) == Plan.nothing(of)


def test_a_job_may_name_this_operator() -> None:
    made = plan(observed(job(nodes=2, managedBy="ddpjob.dev/operator")), NOW)
    assert len(made.actions) == 2


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
