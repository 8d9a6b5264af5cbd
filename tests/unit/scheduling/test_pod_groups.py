"""Volcano and coscheduling: a PodGroup with what the gang requests, and what their schedulers say."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from builders import NOW, job, observed, pod
from ddpjob_operator.core.model import CreateObject, CreatePod, Job, OwnedObject, Plan, Waiting
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.records import object_of
from ddpjob_operator.scheduling.coscheduling import Coscheduling
from ddpjob_operator.scheduling.pod_groups import PodGroups
from ddpjob_operator.scheduling.quantities import requests_of_gang
from ddpjob_operator.scheduling.volcano import Volcano

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
    pods = [action for action in made.actions if isinstance(action, CreatePod)]
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


def waiting(
    provider: PodGroups, said: str = "", status: dict[str, Any] | None = None, others: Sequence[OwnedObject] = ()
) -> Plan:
    of = job(nodes=2, gpusPerNode=1, scheduling={"queueName": "team-a"})
    why = Waiting(reason="Unschedulable", message=said) if said else None
    held: dict[str, Any] = {"node": None, "running": False, "scheduling": provider.name.value, "waiting": why}
    group, _ = creations(of, provider)
    metadata = {**group.body["metadata"], "uid": "group", "resourceVersion": "1"}
    found: OwnedObject = object_of(provider.watched[0], {**group.body, "metadata": metadata, "status": status or {}})
    pods = [pod(of, rank, **held) for rank in range(2)]
    seen = replace(observed(of, *pods), objects=(found,), all_of=lambda kind: others)  # noqa: ARG005 of the one kind
    return plan(seen, NOW, provider)


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        ({}, "Unschedulable", "Volcano has not considered PodGroup job-1 yet"),
        ({"phase": "Pending"}, "Queued", "queued in team-a: Volcano has not admitted the PodGroup yet"),
        ({"phase": "Pending", "said": "quota\x1b[2J"}, "Queued", "queued in team-a: quota"),
        ({"phase": "Inqueue"}, "Unschedulable", "no nodes for all 2 pods together"),
        ({"phase": "Inqueue", "said": "2/2 tasks"}, "Unschedulable", "no nodes for all 2 pods together: 2/2 tasks"),
    ],
)
def test_what_volcano_says_of_the_group(status: dict[str, Any], reason: str, message: str) -> None:
    said = status.pop("said", None)
    conditions = [{"type": "Unschedulable", "status": "True", "message": said}] if said else []
    made = waiting(VOLCANO, status={**status, "conditions": conditions} if status else {})
    assert made.status.reason == reason
    assert str(made.status.message).startswith(message)
    assert "\x1b" not in str(made.status.message)


def test_a_queued_job_names_the_jobs_that_its_queue_has_admitted() -> None:
    def group(name: str, queue: str = "team-a", phase: str = "Running") -> OwnedObject:
        metadata: dict[str, Any] = {"name": f"{name}-1", "namespace": "there", "uid": name, "resourceVersion": "1"}
        metadata["labels"] = {"ddpjob.dev/job": name}
        body = {"metadata": metadata, "spec": {"queue": queue}, "status": {"phase": phase}}
        return object_of(VOLCANO.watched[0], body)

    others = [*map(group, "abcd"), group("x", queue="team-b"), group("y", phase="Pending")]
    made = waiting(VOLCANO, status={"phase": "Pending"}, others=others)
    assert "queued in team-a behind there/a, there/b, there/c and 1 more: Volcano" in str(made.status.message)


def test_what_coscheduling_says_of_the_pods() -> None:
    assert "no scheduler has considered the pods yet" in str(waiting(COSCHEDULING).status.message)
    made = waiting(COSCHEDULING, "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: 0/2 nodes")
    assert made.status.reason == "Unschedulable"
    assert "no nodes for all 2 pods together: 0/2 nodes have nvidia.com/gpu: 1 free" in str(made.status.message)
    assert "queueName team-a has no effect, since the scheduling provider is coscheduling" in str(made.status.message)


def test_a_quantity_of_another_form_counts_for_nothing() -> None:
    container = {"resources": {"requests": {"cpu": "1e3", "memory": "1.5Gi"}}}
    assert requests_of_gang({"spec": {"containers": [container]}}, 2) == {"memory": str(3 * 2**30)}


@pytest.mark.parametrize("resources", ["8Gi", ["8Gi"], {"limits": "8Gi"}, {"requests": ["8Gi"]}], ids=str)
def test_resources_that_are_none_count_for_nothing_and_are_left_for_the_api_server_to_refuse(resources: Any) -> None:
    """Every plan of such a job failed, so it stayed without pods and without a status."""
    of = job(nodes=2, template={"spec": {"initContainers": [{"name": "init", "resources": resources}]}})
    group, pods = creations(of, VOLCANO)
    assert group.body["spec"]["minResources"] == {}
    assert pods[0].body["spec"]["initContainers"][0]["resources"] == resources
