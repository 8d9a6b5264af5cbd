"""The objects of gangs for Volcano and coscheduling, in the schemas of their kinds. No scheduler of theirs runs here.

`hack/proofs/gang_schedulers.py` runs the contract with the real schedulers.
"""

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

import testbed
from ddpjob_operator.scheduling.quantities import number
from support.gang_providers import COSCHEDULING, VOLCANO, WAITING, NodePlaces, Provider
from support.operator_cluster import eventually
from testbed import tools

UNSEEN = {
    "volcano": "the scheduler volcano has not considered PodGroup j-1-u",
    "coscheduling": "the scheduler scheduler-plugins-scheduler has not considered the pods yet",
}
#: What `PodGroupSpec` has in volcano.sh/apis v1.14.0, of which the Go module has no definition; what it lacks is dropped.
VOLCANO_SPEC = {
    "minMember": {"type": "integer", "format": "int32"},
    "minTaskMember": {"type": "object", "additionalProperties": {"type": "integer", "format": "int32"}},
    "queue": {"type": "string"},
    "priorityClassName": {"type": "string"},
    "minResources": {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}},
}


def define_volcano(cluster: testbed.ControlPlane) -> None:
    spec = {"type": "object", "properties": VOLCANO_SPEC}
    status = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": spec, "status": status}}
    version = {"name": "v1beta1", "served": True, "storage": True, "subresources": {"status": {}}}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "podgroups.scheduling.volcano.sh"},
        "spec": {
            "group": "scheduling.volcano.sh",
            "scope": "Namespaced",
            "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    cluster.kubectl.apply(definition)
    cluster.wait_served("podgroups.scheduling.volcano.sh")


def define_coscheduling(cluster: testbed.ControlPlane) -> None:
    """The definition that scheduler-plugins has."""
    cluster.kubectl("apply", "--server-side", "-f", str(tools.path("coscheduling-kinds") / "crd.yaml"))
    cluster.wait_served("podgroups.scheduling.x-k8s.io")


KINDS = [replace(VOLCANO, start=define_volcano), replace(COSCHEDULING, start=define_coscheduling)]


@pytest.fixture(scope="module", params=KINDS, ids=[kind.name for kind in KINDS])
def provider(request: pytest.FixtureRequest) -> Provider:
    given: Provider = request.param
    return given


async def test_a_gang_has_a_group_of_its_size_which_goes_when_the_job_is_suspended(
    places: NodePlaces, provider: Provider
) -> None:
    space = places.namespace
    await places.submit("j", nodes=5, resources={"requests": {"cpu": "500m"}})
    status = await places.waits("j", UNSEEN[provider.name])
    assert status["scheduling"] == {"provider": provider.name}
    pods = await space.has_pods("all pods to be created", lambda pods: len(pods) == 5)
    (name,) = {places.group_of(pod) for pod in pods.values()}
    group = (await places.groups())[name]
    spec: dict[str, Any] = {"minMember": 5}
    if provider.name == "volcano":
        requests = {what: number(quantity) for what, quantity in group["spec"].pop("minResources").items()}
        assert requests == {"cpu": Decimal("2.5"), "nvidia.com/gpu": 5}  # Volcano writes 2500m
        spec["queue"] = "default"
    assert group["spec"] == spec
    assert [owner["uid"] for owner in group["metadata"]["ownerReferences"]] == [
        (await space.job("j"))["metadata"]["uid"]
    ]
    await space.edit("j", nodes=2)
    await places.waits("j", UNSEEN[provider.name].replace("-1-", "-2-"), attempt=2)
    assert [places.size_of(group) for group in (await places.groups()).values()] == [2]
    await space.edit("j", suspend=True)

    async def has_no_groups() -> bool:
        return not await places.groups()

    await eventually("the groups to go", has_no_groups)


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_lost_pod_is_replaced_in_the_group_of_the_others(places: NodePlaces, rank: int) -> None:
    """The test takes the place of the scheduler. `pod_groups.py` names why one node is enough for the real ones."""
    space, pods = places.namespace, ["j-1-0", "j-1-1"]
    lost, successor = pods[rank], f"{pods[rank]}-r1"
    await places.add(2)
    await places.submit("j", nodes=2, **WAITING)
    await space.has_pods("both pods to exist", lambda found: set(found) == set(pods))
    for pod, node in zip(pods, places.nodes, strict=True):
        await space.bind(pod, node)
    await space.reaches("j", "Running")
    before = await places.groups()
    await space.delete_pod(lost)
    await space.has_pods("the new pod to exist", lambda found: successor in found)
    await space.bind(successor, places.nodes[rank])
    await space.shows("j", phase="Running", attempt=1, replacedPods=[{"rank": rank, "replacement": 1}])
    after = await places.groups()
    assert {name: group["metadata"]["uid"] for name, group in after.items()} == {
        name: group["metadata"]["uid"] for name, group in before.items()
    }
    assert {places.group_of(pod) for pod in (await space.pods()).values()} == set(before)
    await space.succeeds("j")


@pytest.mark.parametrize("provider", KINDS[1:], ids=["coscheduling"], indirect=True, scope="module")
async def test_the_operator_reminds_coscheduling_of_pods_that_it_refused_because_of_each_other(
    places: NodePlaces, cluster: testbed.ControlPlane
) -> None:
    space = places.namespace
    await places.submit("j", nodes=2)
    await places.waits("j", UNSEEN["coscheduling"])
    refused = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 optimistic rejection in PostFilter.",
    }
    patch = json.dumps({"status": {"conditions": [refused]}})
    cluster.kubectl("patch", "pod", "j-1-0", "j-1-1", "-n", space.name, "--subresource=status", "-p", patch)

    async def is_reminded() -> bool:
        (group,) = (await places.groups()).values()
        return "ddpjob.dev/refused-pods" in group["metadata"].get("annotations", {})

    await eventually("the PodGroup to change", is_reminded)
    await places.waits("j", "no nodes for all 2 pods together")
