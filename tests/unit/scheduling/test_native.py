"""Kubernetes' own gang scheduling: a PodGroup for each attempt."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from builders import NOW, job, observed, pod
from ddpjob_operator.api.status import Condition, DDPJobStatus
from ddpjob_operator.core.model import CreateObject, CreatePod, DeleteObject, Job, Observed, OwnedObject, Plan, Waiting
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.policies.partial_gang import MAX_HOLD_SECONDS
from ddpjob_operator.core.records import object_of
from ddpjob_operator.scheduling.native_v1alpha2 import NativeV1Alpha2

NATIVE = NativeV1Alpha2()


def group(of: Job, attempt: int = 1, **changes: Any) -> OwnedObject:
    """The PodGroup that the provider creates, as the API server holds it."""
    seen = observed(replace(of, status=of.status.model_copy(update={"attempt": attempt})))
    assert of.spec is not None
    (creation,) = NATIVE.before_pods(seen, of.spec)
    metadata = {**creation.body["metadata"], "uid": f"group-{attempt}", "resourceVersion": "1"}
    found = object_of(NATIVE.watched[0], {**creation.body, "metadata": metadata})
    return replace(found, **changes)


def planned(seen: Observed, *groups: OwnedObject) -> Plan:
    return plan(replace(seen, objects=groups), NOW, NATIVE)


def deleted(made: Plan) -> Sequence[str]:
    return [action.name for action in made.actions if isinstance(action, DeleteObject)]


def test_the_group_comes_before_the_pods_which_name_it() -> None:
    topology = {"key": "rack", "mode": "required"}
    made = planned(observed(job(nodes=2, scheduling={"topology": topology})))

    (creation,) = [action for action in made.actions if isinstance(action, CreateObject)]
    pods = [action for action in made.actions if isinstance(action, CreatePod)]
    assert made.actions == (creation, *pods)
    assert creation.body["spec"] == {
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
    }
    for action in pods:
        assert action.body["spec"]["schedulingGroup"] == {"podGroupName": creation.name}
        assert action.body["metadata"]["annotations"]["ddpjob.dev/scheduling-provider"] == "native"
    assert made.status.scheduling is not None
    assert made.status.scheduling.provider == "native"


def test_a_group_that_exists_is_not_created_again() -> None:
    of = job(nodes=2)
    made = planned(observed(of), group(of))
    assert [type(action) for action in made.actions] == [CreatePod, CreatePod]


FINISHED = DDPJobStatus(
    conditions=[
        Condition(type="Failed", status="True", reason="ProgramError", last_transition_time="2027-01-15T07:00:00Z")
    ]
)


@pytest.mark.parametrize(
    ("of", "gone"),
    [
        (job(status=DDPJobStatus(attempt=2)), ["job-1"]),
        (job(status=DDPJobStatus(attempt=2), suspend=True), ["job-1", "job-2"]),
        (job(status=FINISHED.model_copy(update={"attempt": 2})), ["job-1", "job-2"]),
    ],
    ids=["of an earlier attempt", "suspended", "finished"],
)
def test_a_group_is_deleted_when_no_pod_needs_it(of: Job, gone: list[str]) -> None:
    groups = (group(of, 1), group(of, 2))
    assert deleted(planned(observed(of), *groups)) == gone
    marked = [replace(found, deleting=True) for found in groups]
    assert deleted(planned(observed(of), *marked)) == []


def test_a_group_of_somebody_else_is_left_alone() -> None:
    of = job(status=FINISHED)
    assert deleted(planned(observed(of), group(of, job_uid=""))) == []


def test_pods_from_before_the_provider_keep_running_and_are_completed_without_a_group() -> None:
    of = job(nodes=2)
    both = planned(observed(of, pod(of, 0), pod(of, 1)))
    assert both.actions == ()
    assert both.status.reason == "Running"

    (creation,) = planned(observed(of, pod(of, 0))).actions
    assert isinstance(creation, CreatePod)
    assert "schedulingGroup" not in creation.body["spec"]


def test_a_gang_that_its_scheduler_places_as_a_whole_is_never_given_back() -> None:
    of = job(nodes=2)
    waiting = {"node": None, "running": False, "waiting": Waiting(reason="Unschedulable", message="0/1 nodes")}
    pods = [pod(of, 0, scheduling="native"), pod(of, 1, scheduling="native", **waiting)]
    later = NOW + 2 * MAX_HOLD_SECONDS
    made = plan(replace(observed(of, *pods), objects=(group(of),)), later, NATIVE)
    assert (made.status.attempt, made.actions) == (1, ())


def test_gang_none_creates_no_group() -> None:
    made = planned(observed(job(nodes=2, scheduling={"gang": "none"})))
    assert not [action for action in made.actions if isinstance(action, CreateObject)]
    assert made.status.scheduling is not None
    assert made.status.scheduling.provider == "none"
