"""Volcano and coscheduling: a PodGroup with what the gang requests, and what their schedulers say."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from ddpjob_operator.api.names import MAX_JOB_NAME_LENGTH
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.actions import CreateObject, CreatePod, PatchObject, Plan
from ddpjob_operator.core.model import Job, OwnedObject, Waiting
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.policies.whole_gang import QUEUE_SECONDS
from ddpjob_operator.core.records import object_of
from ddpjob_operator.scheduling.coscheduling import CANDIDATE, Coscheduling
from ddpjob_operator.scheduling.native_v1alpha2 import NativeV1Alpha2
from ddpjob_operator.scheduling.pod_groups import PodGroups
from ddpjob_operator.scheduling.quantities import requests_of_gang
from ddpjob_operator.scheduling.volcano import Volcano
from support.builders import NOW, job, observed, pod, pods_created

VOLCANO, COSCHEDULING = Volcano(), Coscheduling()
TEMPLATE = {
    "spec": {
        "containers": [{"name": "proxy", "resources": {"requests": {"cpu": "250m", "memory": "1Gi"}}}],
        "initContainers": [
            {"name": "mesh", "restartPolicy": "Always", "resources": {"limits": {"cpu": "50m"}}},
            {"name": "download", "resources": {"requests": {"cpu": "100m", "memory": "64Gi"}}},
        ],
    }
}
RESOURCES = {"requests": {"cpu": "2", "memory": "16Gi"}, "limits": {"memory": "32Gi"}}


def creations(of: Job, provider: PodGroups) -> tuple[CreateObject, list[CreatePod]]:
    made = plan(observed(of), NOW, provider)
    (group,) = [action for action in made.actions if isinstance(action, CreateObject)]
    pods = pods_created(made)
    assert made.actions.index(group) < made.actions.index(pods[0])
    return group, pods


def test_volcano_gets_the_gang_its_queue_and_its_priority() -> None:
    scheduling = {"queueName": "team-a", "priorityClassName": "high"}
    of = job(nodes=2, gpusPerNode=8, resources=RESOURCES, template=TEMPLATE, scheduling=scheduling)
    group, pods = creations(of, VOLCANO)
    assert group.body["apiVersion"] == "scheduling.volcano.sh/v1beta1"
    assert group.body["spec"] == {
        "minMember": 2,
        "minResources": {"cpu": "4.6", "memory": str(2 * 64 * 2**30), "nvidia.com/gpu": "16"},
        "queue": "team-a",
        "priorityClassName": "high",
    }
    for each in pods:
        assert each.body["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == group.name
        assert each.body["spec"]["schedulerName"] == "volcano"


def test_coscheduling_gets_the_gang_by_a_label() -> None:
    group, pods = creations(job(nodes=2, gpusPerNode=1), COSCHEDULING)
    assert group.body["apiVersion"] == "scheduling.x-k8s.io/v1alpha1"
    assert group.body["spec"] == {"minMember": 2}
    for each in pods:
        assert each.body["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == group.name
        assert each.body["spec"]["schedulerName"] == "scheduler-plugins-scheduler"


@pytest.mark.parametrize("provider", [VOLCANO, COSCHEDULING, NativeV1Alpha2()], ids=lambda provider: provider.name)
def test_the_group_of_a_job_is_not_that_of_an_earlier_job_of_its_name(provider: PodGroups) -> None:
    """Pods of the earlier one may still stop, and a scheduler would count them: a part of the new gang would get nodes."""
    of = replace(job(nodes=2), name="j" * MAX_JOB_NAME_LENGTH, status=DDPJobStatus(attempt=99_999))
    names = {creations(replace(of, uid=uid), provider)[0].name for uid in ("1b2c3d-0a1b", "1b2c3d-0a2b")}
    assert len(names) == 2
    assert {len(name) for name in names} == {63}, "a label holds no more"


@pytest.mark.parametrize("provider", [VOLCANO, COSCHEDULING], ids=lambda provider: provider.name)
def test_the_template_may_name_another_scheduler_and_topology_is_an_affinity(provider: PodGroups) -> None:
    of = job(
        nodes=2,
        template={"spec": {"schedulerName": "ours"}},
        scheduling={"topology": {"key": "rack", "mode": "required"}},
    )
    _, pods = creations(of, provider)
    for each in pods:
        assert each.body["spec"]["schedulerName"] == "ours"
        (term,) = each.body["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "rack"


#: What Volcano says of each group that it has not admitted.
COUNTS = "2/2 tasks in gang unschedulable: pod group is not ready, 2 Pending, 2 minAvailable; Pending: 2 Unschedulable"
#: How Volcano says why a pod has no node.
NO_GPU = "0/1 nodes are unavailable: 1 Insufficient nvidia.com/gpu."


def waiting(
    provider: PodGroups,
    *said: str,
    status: dict[str, Any] | None = None,
    others: Sequence[OwnedObject] = (),
    num_placed: int = 0,
    annotations: Mapping[str, str] | None = None,
    version: str = "1",
    **spec: Any,
) -> Plan:
    of = job(nodes=2, gpusPerNode=1, scheduling={"queueName": "team-a"}, **spec)
    held: dict[str, Any] = {"scheduling": provider.name.value}
    pods = []
    group, _ = creations(of, provider)
    metadata = {**group.body["metadata"], "uid": "group", "resourceVersion": "1", "annotations": annotations or {}}
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
    found: OwnedObject = object_of(provider.watched[0], {**group.body, "metadata": metadata, "status": status or {}})
    for rank in range(2):
        why = Waiting(reason="Unschedulable", message=said[min(rank, len(said) - 1)]) if said else None
        unplaced: dict[str, Any] = {"node": None, "running": False, "waiting": why, "version": version}
        pods.append(pod(of, rank, **held, **({} if rank < num_placed else unplaced)))
    seen = replace(observed(of, *pods), objects=(found,), all_of=lambda kind: others)  # noqa: ARG005 of the one kind
    return plan(seen, NOW, provider)


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        ({}, "Starting", "the scheduler volcano has not considered PodGroup job-1-uuid yet"),
        (
            {"phase": "Pending"},
            "Queued",
            "queued in team-a: Volcano has not admitted the PodGroup, which needs nvidia.com/gpu: 2",
        ),
        (
            {"phase": "Pending", "said": COUNTS},
            "Queued",
            "queued in team-a: Volcano has not admitted the PodGroup, which needs nvidia",
        ),
        ({"phase": "Inqueue", "said": COUNTS}, "Unschedulable", "no nodes for all 2 pods together"),
        ({"phase": "Pending", "said": "quota\x1b[2J"}, "Queued", "queued in team-a: quota"),
        ({"phase": "Inqueue"}, "Unschedulable", "no nodes for all 2 pods together"),
        ({"phase": "Inqueue", "said": "2/2 tasks"}, "Unschedulable", "no nodes for all 2 pods together: 2/2 tasks"),
        (
            {"phase": "Inqueue", "said": f"2/2 tasks in gang unschedulable: x. Origin reason is job-1-0: {NO_GPU}"},
            "Unschedulable",
            "no nodes for all 2 pods together: 0/1 nodes are unavailable: 1 without nvidia.com/gpu: 1 free",
        ),
    ],
)
def test_what_volcano_says_of_the_group(status: dict[str, Any], reason: str, message: str) -> None:
    said = status.pop("said", None)
    conditions = [{"type": "Unschedulable", "status": "True", "message": said}] if said else []
    made = waiting(VOLCANO, status={**status, "conditions": conditions} if status else {})
    assert made.status.reason == reason
    assert str(made.status.message).startswith(message)
    assert "\x1b" not in str(made.status.message)


OLD, NEW = "2025-12-31T00:00:00Z", "2026-01-02T00:00:00Z"


def group(name: str, phase: str, *, queue: str = "team-a", created: str = NEW, **spec: str) -> OwnedObject:
    """The PodGroup of another job."""
    metadata: dict[str, Any] = {"name": f"{name}-1", "namespace": "there", "uid": name, "resourceVersion": "1"}
    metadata |= {"labels": {"ddpjob.dev/job": name}, "creationTimestamp": created}
    body = {"metadata": metadata, "spec": {"queue": queue, **spec}, "status": {"phase": phase}}
    return object_of(VOLCANO.watched[0], body)


def test_a_queued_job_names_the_jobs_that_its_queue_has_admitted_and_looks_again_since_they_change() -> None:
    replaced = group("a", "Unknown")  # one of its pods is replaced alone, and the others run
    admitted = [replaced, group("b", "Inqueue"), *(group(name, "Running") for name in "cd")]
    others = [*admitted, group("x", "Running", queue="team-b"), group("y", "Completed")]
    made = waiting(VOLCANO, status={"phase": "Pending"}, others=others)
    assert made.wake_at == NOW + QUEUE_SECONDS
    assert "queued in team-a behind there/a, there/b, there/c and 1 more: Volcano" in str(made.status.message)


def test_a_queued_job_says_how_many_jobs_of_its_priority_wait_for_longer() -> None:
    pending = partial(group, phase="Pending", created=OLD)
    elsewhere = [pending("x", queue="team-b"), pending("y", priorityClassName="low"), pending("z", created=NEW)]
    for earlier, position in (([], ""), (["a"], "1 job before it; "), (["a", "b", "c"], "3 jobs before it; ")):
        others = [*map(pending, earlier), *elsewhere]
        message = waiting(VOLCANO, status={"phase": "Pending"}, others=others).status.message
        assert str(message).startswith(f"queued in team-a: {position}Volcano has not admitted the PodGroup")


def test_what_coscheduling_says_of_the_pods() -> None:
    assert "the scheduler scheduler-plugins-scheduler has not considered the pods yet" in str(
        waiting(COSCHEDULING).status.message
    )
    made = waiting(COSCHEDULING, "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: 0/2 nodes")
    assert made.status.reason == "Unschedulable"
    assert "no nodes for all 2 pods together: 0/2 nodes have nvidia.com/gpu: 1 free" in str(made.status.message)
    assert "queueName team-a has no effect, since the scheduling provider is coscheduling" in str(made.status.message)


@pytest.mark.parametrize("resources", ["8Gi", ["8Gi"], {"limits": "8Gi"}, {"requests": ["8Gi"]}], ids=str)
def test_resources_that_are_none_count_for_nothing_and_are_left_for_the_api_server_to_refuse(resources: Any) -> None:
    """Every plan of such a job failed, so it stayed without pods and without a status."""
    of = job(nodes=2, template={"spec": {"initContainers": [{"name": "init", "resources": resources}]}})
    group, pods = creations(of, VOLCANO)
    assert group.body["spec"]["minResources"] == {}
    assert pods[0].body["spec"]["initContainers"][0]["resources"] == resources


def test_coscheduling_that_does_not_see_all_pods_yet_does_not_say_that_nodes_are_missing() -> None:
    """`PreFilter` of the plugin refuses the first pods of a gang until its cache has the last one, for about a second."""
    status = waiting(COSCHEDULING, NOT_ALL).status
    assert status.reason == "Starting"
    assert str(status.message).startswith("the scheduler scheduler-plugins-scheduler does not see all 2 pods yet")


#: What the real plugin says of a pod before its cache has the others of the group.
NOT_ALL = "0/2 nodes are available: pre-filter pod job-1-0 cannot find enough sibling pods, current pods number: 1, minMember of group: 2."
#: What the real plugin says of pods that it refuses because of another pod of the group, and of one that finds no node itself.
OPTIMISTIC, UNRESERVED = (
    f"0/1 nodes are available: 1 {why}." for why in ("optimistic rejection in PostFilter", "rejection in Unreserve")
)
NO_NODE = (
    "0/5 nodes are available: 5 Insufficient nvidia.com/gpu. no new claims to deallocate, preemption: 0/5 nodes are available:"
    " 5 No preemption victims found for incoming pod., PodGroup here/job-1 gets rejected due to Pod job-1-1 is unschedulable even"
    " after PostFilter"
)


def test_coscheduling_shows_the_pod_that_fails_first_and_not_those_that_wait_for_it() -> None:
    for messages in ((OPTIMISTIC, NO_NODE), (NO_NODE, NO_NODE), (NOT_ALL, NO_NODE)):
        message = str(waiting(COSCHEDULING, *messages).status.message)
        assert message.startswith("no nodes for all 2 pods together: 0/5 nodes have nvidia.com/gpu: 1 free;")
    alone = waiting(COSCHEDULING, "podGroup here/job-1 failed recently").status.message
    assert str(alone).startswith("no nodes for all 2 pods together;")


def test_pods_that_coscheduling_refuses_only_because_of_each_other_are_brought_to_its_attention() -> None:
    """The plugin looks at them again when their PodGroup changes, and otherwise after five minutes, though nodes are free."""
    assert waiting(COSCHEDULING, NOT_ALL, UNRESERVED).actions, "it does not look at the first one again by itself"
    (touch,) = waiting(COSCHEDULING, OPTIMISTIC, UNRESERVED).actions
    assert isinstance(touch, PatchObject)
    assert touch.name == "job-1-uuid"
    annotations = touch.patch["metadata"]["annotations"]
    assert waiting(COSCHEDULING, OPTIMISTIC, UNRESERVED, annotations=annotations).actions == ()
    later = waiting(COSCHEDULING, OPTIMISTIC, UNRESERVED, annotations=annotations, version="2")
    assert [type(action) for action in later.actions] == [PatchObject]

    for messages in ((OPTIMISTIC, NO_NODE), ()):
        assert waiting(COSCHEDULING, *messages).actions == ()
    assert waiting(COSCHEDULING, OPTIMISTIC, num_placed=1).actions == ()
    assert waiting(VOLCANO, OPTIMISTIC).actions == ()
    (patch,) = (right for right in CANDIDATE.rights if right.verb == "patch")
    assert patch.group == "scheduling.x-k8s.io"


@pytest.mark.parametrize("provider", [VOLCANO, COSCHEDULING], ids=lambda provider: provider.name)
def test_a_scheduler_that_places_pods_alone_is_named(provider: PodGroups) -> None:
    template = {"spec": {"schedulerName": "default-scheduler"}}
    made = waiting(provider, "0/1 nodes", num_placed=1, template=template)
    assert "1 of 2 pods have a node; the scheduler default-scheduler has not bound the others yet" in str(
        made.status.message
    )
    assert (made.status.attempt, made.actions) == (1, ())


def test_a_condition_is_untrusted_text() -> None:
    long = "\u202e" + "x" * 100_000 + "\nend"
    conditions: list[dict[str, str]] = [{}, {"type": "Unschedulable", "status": "True", "message": long}]
    message = waiting(VOLCANO, status={"phase": "Inqueue", "conditions": conditions}).status.message
    assert message is not None
    assert len(message) < 1200
    assert message.isprintable()


@pytest.mark.parametrize(
    ("quantity", "requested"),
    [
        ("500m", "1"), ("1.5Gi", str(3 * 2**30)), ("1e3", "2000"), ("5e-1", "1"), ("2E", str(4 * 10**18)), ("1Pi", str(2**51)),
        ("5u", "0.00001"), (".5", "1"), (4, "8"), ("much", None), ("-1", None), ("1Xi", None), (None, None),
    ],
)  # fmt: skip
def test_a_quantity_of_another_form_counts_for_nothing(quantity: object, requested: str | None) -> None:
    container = {"resources": {"requests": {"cpu": quantity}}}
    expected = {"cpu": requested} if requested else {}
    assert requests_of_gang({"spec": {"containers": [container]}}, 2) == expected


def container(restart: str | None = None, **requested: Any) -> dict[str, Any]:
    return {"resources": {"requests": requested}, **({"restartPolicy": restart} if restart else {})}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [container(cpu=1)], "initContainers": [container(cpu=3)]}, "3"),
        ({"containers": [container(cpu=1)], "initContainers": [container("Always", cpu=2), container(cpu=2)]}, "4"),
        ({"containers": [container(cpu=1)], "initContainers": [container(cpu=2), container("Always", cpu=2)]}, "3"),
        ({"containers": [container(cpu=1)], "overhead": {"cpu": "250m"}}, "1.25"),
        ({"containers": ["none"], "initContainers": 3, "overhead": []}, None),
    ],
    ids=["init container", "sidecar before it", "sidecar after it", "overhead", "malformed"],
)
def test_a_pod_requests_what_kubernetes_reserves_for_it(spec: dict[str, Any], cpu: str | None) -> None:
    assert requests_of_gang({"spec": spec}, 1) == ({"cpu": cpu} if cpu else {})
