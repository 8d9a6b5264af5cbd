"""Kubernetes' own gang scheduling: a PodGroup for each attempt."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.api.status import Condition, DDPJobStatus
from ddpjob_operator.core.actions import CreateObject, CreatePod, DeleteObject, PatchObject, Plan
from ddpjob_operator.core.model import Job, Observed, OwnedObject, Waiting
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.policies.partial_gang import MAX_HOLD_SECONDS
from ddpjob_operator.core.records import object_of
from ddpjob_operator.core.render.pods import create_pod
from ddpjob_operator.scheduling.native_groups import NativeGroups
from ddpjob_operator.scheduling.native_v1alpha2 import NativeV1Alpha2
from ddpjob_operator.scheduling.native_v1beta1 import NativeV1Beta1
from support.builders import NOW, job, observed, pod, pods_created, with_status

NATIVE, IN_1_36 = NativeV1Beta1(), NativeV1Alpha2()
both_versions = pytest.mark.parametrize("native", [NATIVE, IN_1_36], ids=["v1beta1", "v1alpha2"])


def group(of: Job, attempt: int = 1, native: NativeGroups = NATIVE, **changes: Any) -> OwnedObject:
    """The PodGroup that the provider creates, as the API server holds it."""
    seen = observed(replace(of, status=of.status.model_copy(update={"attempt": attempt})))
    assert of.spec is not None
    (creation,) = native.before_pods(seen, of.spec, create_pod(of, of.spec, "trainer:1", 0).manifest.render)
    assert isinstance(creation, CreateObject)
    metadata = {**creation.body["metadata"], "uid": f"group-{attempt}", "resourceVersion": "1"}
    found = object_of(native.watched[0], {**creation.body, "metadata": metadata})
    return replace(found, **changes)


def planned(seen: Observed, *groups: OwnedObject, native: NativeGroups = NATIVE) -> Plan:
    return plan(replace(seen, objects=groups), NOW, native)


def deleted(made: Plan) -> Sequence[str]:
    return [action.name for action in made.actions if isinstance(action, DeleteObject)]


def test_the_group_comes_before_the_pods_which_name_it() -> None:
    topology = {"key": "rack", "mode": "required"}
    made = planned(observed(job(nodes=2, scheduling={"topology": topology})))

    (creation,) = [action for action in made.actions if isinstance(action, CreateObject)]
    pods = pods_created(made)
    assert made.actions == (creation, *pods)
    assert creation.body["spec"] == {
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
        "disruptionMode": {"all": {}},
    }
    for action in pods:
        assert action.body["spec"]["schedulingGroup"] == {"podGroupName": creation.name}
        assert action.body["metadata"]["annotations"]["ddpjob.dev/scheduling-provider"] == "native"
    assert made.status.scheduling is not None
    assert made.status.scheduling.provider == "native"


def test_a_group_that_exists_is_not_created_again() -> None:
    of = job(nodes=2)
    for found in (group(of), group(of, deleting=True)):
        assert [type(action) for action in planned(observed(of), found).actions] == [CreatePod, CreatePod]


FINISHED = DDPJobStatus(
    conditions=[
        Condition(type="Failed", status="True", reason="ProgramError", last_transition_time="2027-01-15T07:00:00Z")
    ]
)


@pytest.mark.parametrize(
    ("of", "gone"),
    [
        (job(status=DDPJobStatus(attempt=2)), ["job-1-uuid"]),
        (job(status=DDPJobStatus(attempt=3), suspend=True), ["job-1-uuid", "job-2-uuid"]),
        (job(status=FINISHED.model_copy(update={"attempt": 2})), ["job-1-uuid", "job-2-uuid"]),
    ],
    ids=["of an earlier attempt", "suspended", "finished"],
)
def test_a_group_is_deleted_when_no_pod_needs_it(of: Job, gone: list[str]) -> None:
    groups = (group(of, 1), group(of, 2))
    assert deleted(planned(observed(of), *groups)) == gone
    marked = [replace(found, deleting=True) for found in groups]
    assert deleted(planned(observed(of), *marked)) == []


def test_required_topology_holds_the_pods_until_the_api_server_has_accepted_it() -> None:
    of = job(nodes=2, scheduling={"topology": {"key": "rack", "mode": "required"}})
    first = planned(observed(of))
    assert [type(action) for action in first.actions] == [CreateObject]
    assert [type(action) for action in planned(observed(of), group(of)).actions] == [CreatePod, CreatePod]

    dropped = planned(observed(of), group(of, spec={"schedulingPolicy": {"gang": {"minCount": 2}}}))
    assert dropped.actions == ()
    assert dropped.status.message is not None
    assert "TopologyAwareWorkloadScheduling" in dropped.status.message


@both_versions
def test_the_message_is_of_the_pods_that_find_no_node(native: NativeGroups) -> None:
    of = job(nodes=3, gpusPerNode=1)
    echo = (
        "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled, one or more plugins asked"
    )
    cause = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. no new claims to deallocate, preemption: 0/3 nodes"
    said = [Waiting(reason="Unschedulable", message=message) for message in (echo, cause, echo)]

    def waits(*whys: Waiting, placed: int = 0, **of_the_group: Any) -> Plan:
        there = [pod(of, rank, scheduling="native") for rank in range(placed)]
        held: dict[str, Any] = {"node": None, "running": False, "scheduling": "native"}
        pods = [pod(of, rank, waiting=why, **held) for rank, why in enumerate(whys, placed)]
        return planned(observed(of, *there, *pods), group(of, native=native, **of_the_group), native=native)

    made = waits(*said)
    assert made.status.reason == "Unschedulable"
    assert made.status.message == "no nodes for all 3 pods together: 0/3 nodes have nvidia.com/gpu: 1 free"
    assert waits(said[0], said[0], said[0]).status.message == "no nodes for all 3 pods together"
    assert f"is not scheduled: enable {native.gates} in the scheduler" in str(waits(*said[:2], placed=1).status.message)
    binds = waits(*said[:2], placed=1, status={"conditions": [{"type": native.scheduled, "status": "True"}]})
    assert "no nodes for all 3 pods" in str(binds.status.message)


def test_a_job_that_is_suspended_between_group_and_pods_leaves_the_group_to_its_attempt() -> None:
    """The group is immutable and goes late: with an edited number of nodes it would never be complete."""
    of = job(nodes=2, suspend=True)
    seen = observed(of)
    ahead = planned(seen, group(of))
    assert (ahead.status.attempt, ahead.actions) == (2, ())
    after = replace(seen, job=replace(of, status=ahead.status))
    assert deleted(planned(after, group(of))) == ["job-1-uuid"]
    assert planned(after, group(of, deleting=True)).status.attempt == 2


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_job_whose_size_changes_between_group_and_pods_leaves_the_group_to_its_attempt(nodes: int) -> None:
    """The group is immutable: of more pods a part could get nodes, and fewer would wait for ever."""
    before, seen = group(job(nodes=3)), observed(job(nodes=nodes))
    made = planned(seen, before)
    assert (made.status.attempt, made.actions) == (2, ())
    assert deleted(planned(replace(seen, job=replace(seen.job, status=made.status)), before)) == ["job-1-uuid"]


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


def test_a_gang_without_nodes_that_waits_for_another_provider_is_replaced_and_one_with_nodes_is_not() -> None:
    of = job(nodes=2)
    waiting = [pod(of, rank, scheduling="volcano", node=None, running=False) for rank in range(2)]
    made = planned(observed(of, *waiting))
    assert (made.status.attempt, made.status.reason) == (2, "GangGivenBack")
    assert "created for the scheduling provider volcano, and the operator now uses native" in str(made.status.message)

    runs = planned(observed(of, *(pod(of, rank, scheduling="volcano") for rank in range(2))))
    assert (runs.status.attempt, runs.status.reason, runs.actions) == (1, "Running", ())
    old = planned(observed(of, *(pod(of, rank, node=None, running=False) for rank in range(2))))
    assert (old.status.attempt, old.actions) == (1, ())


def test_a_queue_that_the_provider_does_not_have_is_named() -> None:
    made = planned(observed(job(nodes=2, scheduling={"queueName": "team-a"})))
    assert "queueName team-a has no effect, since the scheduling provider is native" in str(made.status.message)


def test_a_gang_that_its_scheduler_places_as_a_whole_is_never_given_back() -> None:
    of = job(nodes=2)
    waiting: dict[str, Any] = {
        "node": None,
        "running": False,
        "waiting": Waiting(reason="Unschedulable", message="0/1 nodes"),
    }
    pods = [pod(of, 0, scheduling="native"), pod(of, 1, scheduling="native", **waiting)]
    seen = replace(observed(of, *pods), objects=(group(of),))
    held = with_status(seen, plan(seen, NOW, NATIVE).status)
    made = plan(held, NOW + 2 * MAX_HOLD_SECONDS, NATIVE)
    assert (made.status.attempt, made.actions) == (1, ())


def test_gang_none_creates_no_group() -> None:
    made = planned(observed(job(nodes=2, scheduling={"gang": "none"})))
    assert not [action for action in made.actions if isinstance(action, CreateObject)]
    assert made.status.scheduling is not None
    assert made.status.scheduling.provider == "none"


def group_of(spec: dict[str, Any], native: NativeGroups = NATIVE) -> dict[str, Any]:
    return dict(group(job(nodes=4, **spec), native=native).spec)


def test_a_group_of_1_37_has_the_priority_of_its_pods_and_is_preempted_whole_unless_it_can_lose_pods() -> None:
    assert group_of({"scheduling": {"priorityClassName": "high"}})["priorityClassName"] == "high"
    assert group_of({"template": {"spec": {"priorityClassName": "low"}}})["priorityClassName"] == "low"
    assert group_of({}) == {"schedulingPolicy": {"gang": {"minCount": 4}}, "disruptionMode": {"all": {}}}
    assert group_of({"minNodes": 2}) == {"schedulingPolicy": {"gang": {"minCount": 2}}}
    named = {"scheduling": {"priorityClassName": "high"}}
    assert group_of(named, IN_1_36) == {"schedulingPolicy": {"gang": {"minCount": 4}}}


def test_a_group_of_1_37_changes_its_size_while_its_pods_stay() -> None:
    before = group(job(nodes=3, minNodes=2))
    pods = [pod(job(nodes=3), rank, scheduling="native", node=None, running=False) for rank in range(3)]
    for least, mark in ((1, "1"), (3, None), (None, None)):
        of = job(nodes=3, minNodes=least)
        made = planned(observed(of, *pods), before)
        (change,) = made.actions
        assert isinstance(change, PatchObject)
        assert (made.status.attempt, change.patch["metadata"]["uid"]) == (1, before.uid)
        assert change.patch["spec"] == {"schedulingPolicy": {"gang": {"minCount": least or 3}}}
        assert change.patch["metadata"]["annotations"] == {"ddpjob.dev/least-nodes": mark}
        assert planned(observed(of, *pods), replace(group(of), uid=before.uid)).actions == ()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("all pods in a single pod group should have the same priority, got 5 and 0", "all pods in a single pod group"),
        ('error in "DynamicResources" PodGroupPostFilter plugins: not found', "the scheduler has considered no node"),
    ],
)
def test_a_group_that_the_scheduler_of_1_37_cannot_consider_shows_why(said: str, shown: str) -> None:
    of = job(nodes=2)
    why = Waiting(reason="SchedulerError", message=said)
    pods = [pod(of, rank, scheduling="native", node=None, running=False, waiting=why) for rank in range(2)]
    refused = {"type": "PodGroupInitiallyScheduled", "status": "False", "reason": "SchedulerError", "message": said}
    made = planned(observed(of, *pods), group(of, status={"conditions": [refused]}))
    assert str(made.status.message).startswith(f"no nodes for all 2 pods together: {shown}")


CLAIMS = [{"name": "net", "resourceClaimTemplateName": "fast"}, {"name": "own", "resourceClaimTemplateName": "fast"}]


def test_a_shared_claim_is_that_of_the_group_and_of_each_pod() -> None:
    of = job(nodes=2, scheduling={"sharedClaims": ["net"]}, template={"spec": {"resourceClaims": CLAIMS}})
    assert group(of).spec["resourceClaims"] == CLAIMS[:1]
    pods = pods_created(planned(observed(of), group(of)))
    assert [pod.body["spec"]["resourceClaims"] for pod in pods] == [CLAIMS, CLAIMS]


@pytest.mark.parametrize(
    ("claims", "dropped", "said"),
    [
        (CLAIMS, {"resourceClaims": None}, "the feature gate DRAWorkloadResourceClaims in API server, scheduler"),
        (CLAIMS[1:], {}, "sharedClaims names net, but spec.template.spec.resourceClaims has none of that name"),
        ([{"resourceClaimTemplateName": "fast"}, {"name": ["net"]}], {}, "sharedClaims names net, but"),
        (None, {}, "sharedClaims names net, but"),
    ],
)
def test_pods_are_held_while_their_group_has_no_shared_claim(
    claims: list[dict[str, Any]] | None, dropped: dict[str, None], said: str
) -> None:
    of = job(nodes=2, scheduling={"sharedClaims": ["net"]}, template={"spec": {"resourceClaims": claims}})
    made = planned(observed(of), group(of, spec={**group(of).spec, **dropped}))
    assert made.actions == ()
    assert said in str(made.status.message)


def test_shared_claims_that_a_provider_does_not_know_are_named() -> None:
    of = job(nodes=2, scheduling={"sharedClaims": ["net"]}, template={"spec": {"resourceClaims": CLAIMS}})
    made = planned(observed(of), group(of, native=IN_1_36), native=IN_1_36)
    assert "sharedClaims has no effect, since the scheduling provider is native" in str(made.status.message)


def test_each_version_reads_its_own_condition() -> None:
    assert {native.kind.api_version: native.scheduled for native in (NATIVE, IN_1_36)} == {
        "scheduling.k8s.io/v1beta1": "PodGroupInitiallyScheduled",
        "scheduling.k8s.io/v1alpha2": "PodGroupScheduled",
    }
