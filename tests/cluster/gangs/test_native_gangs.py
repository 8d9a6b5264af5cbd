"""What only Kubernetes' own gang scheduling does."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import testbed
from ddpjob_operator.transport.access import load_access
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.resources import EVENTS
from support.gang_providers import NATIVE, NativePlaces, Provider
from support.installation import install
from support.operator_cluster import Namespace, eventually
from support.operator_process import OperatorProcess
from testbed import tools

#: A gang with minNodes takes the nodes that it has after deadlines.fullSizeSeconds.
RELEASE_SECONDS = 240.0
TOPOLOGY = "TopologyAwareWorkloadScheduling"
CLAIMS = "DRAWorkloadResourceClaims"
SHARED = {"name": "net", "resourceClaimTemplateName": "fast"}
#: One device that pods on all nodes can use.
DRIVER = "net.example.com"
DEVICES = [
    {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": "fast"}, "spec": spec}
    for kind, spec in (
        ("DeviceClass", {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]}),
        (
            "ResourceSlice",
            {
                "driver": DRIVER,
                "allNodes": True,
                "pool": {"name": "fast", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "one"}],
            },
        ),
        (
            "ResourceClaimTemplate",
            {"spec": {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "fast"}}]}}},
        ),
    )
]
in_1_37 = pytest.mark.skipif(tools.release() < (1, 37), reason="the PodGroups of Kubernetes 1.36 have less")


@pytest.fixture(scope="module")
def provider() -> Provider:
    return NATIVE


async def test_the_group_of_an_attempt_belongs_to_the_job_and_has_its_min_nodes(
    places: NativePlaces,
) -> None:
    space = places.namespace
    await places.submit("j", nodes=4, minNodes=3)
    await places.waits("j", "no nodes for 3 of the 4 pods together")
    job = await space.job("j")
    assert list(await places.groups()) == [group_name(job)]
    await space.edit("j", minNodes=2)
    attempt = 1 if tools.release() >= (1, 37) else 2  # the group of 1.36 is immutable
    await places.waits("j", "no nodes for 2 of the 4 pods together", attempt=attempt)
    ((name, group),) = (await places.groups()).items()
    assert (name, places.size_of(group)) == (group_name(job, attempt), 2)
    assert [owner["uid"] for owner in group["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]


def group_name(job: Mapping[str, Any], attempt: int = 1) -> str:
    return f"j-{attempt}-u{job['metadata']['uid'][-3:]}"


@in_1_37
async def test_a_gang_that_waits_gets_nodes_in_its_group_once_min_nodes_is_as_many_as_there_are(
    places: NativePlaces,
) -> None:
    space = places.namespace
    await places.add(2)
    await places.submit("j", nodes=3, deadlines={"fullSizeSeconds": 10})
    await places.waits("j", "no nodes for all 3 pods together")
    (before,) = (await places.groups()).values()
    pods = await space.pods()
    await space.edit("j", minNodes=2)
    await space.has_pods(
        "the same pods to have both nodes",
        lambda now: sum("nodeName" in now[name]["spec"] for name in pods if name in now) == 2,
    )
    (after,) = (await places.groups()).values()
    assert (after["metadata"]["uid"], places.size_of(after)) == (before["metadata"]["uid"], 2)
    await space.shows("j", phase="Running", ready="2/2", seconds=RELEASE_SECONDS)


@in_1_37
@pytest.mark.parametrize(("min_nodes", "num_preempted"), [(None, 2), (1, 1)])
async def test_for_one_pod_a_gang_is_preempted_whole_and_one_with_min_nodes_loses_one_pod(
    places: NativePlaces, min_nodes: int | None, num_preempted: int
) -> None:
    space = places.namespace
    await places.add(2)
    await places.submit("low", nodes=2, minNodes=min_nodes, priority="low")
    await space.reaches("low", "Running")
    await places.submit("high", nodes=1, priority="high")
    await space.reaches("high", "Running")
    events = (await space.all(EVENTS)).values()
    preempted = {event["involvedObject"]["name"] for event in events if event["reason"] == "Preempted"}
    assert len(preempted & {"low-1-0", "low-1-1"}) == num_preempted


async def test_a_group_of_somebody_else_is_left_alone_and_named(places: NativePlaces) -> None:
    namespace = places.namespace
    spec = {"schedulingPolicy": {"gang": {"minCount": 1}}}
    await places.add(1)
    await places.submit("j", suspend=True)
    name = group_name(await namespace.job("j"))
    body = {"apiVersion": places.version, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}
    foreign = await namespace.client.create(places.pod_groups, namespace.name, body)
    await namespace.edit("j", suspend=False)
    assert (await namespace.shows("j", "exists"))["message"] == (
        f"the API server refuses to create PodGroup {name}: it exists and belongs to no owner, not to this job:"
        " delete it, or rename this job"
    )
    assert (await places.groups())[name]["metadata"]["uid"] == foreign["metadata"]["uid"]
    await namespace.client.delete(places.pod_groups, namespace.name, name, uid=foreign["metadata"]["uid"])
    await namespace.reaches("j", "Running")


@pytest.mark.parametrize(
    ("asked", "gate"),
    [
        ({"topology": {"key": "rack", "mode": "required"}}, TOPOLOGY),
        pytest.param({"sharedClaims": ["net"]}, CLAIMS, marks=in_1_37),
    ],
)
async def test_pods_are_not_created_while_the_cluster_ignores_what_their_group_needs(
    places: NativePlaces, asked: dict[str, Any], gate: str
) -> None:
    namespace = places.namespace
    await namespace.apply(
        "j", nodes=2, processesPerNode=1, scheduling=asked, template={"spec": {"resourceClaims": [SHARED]}}
    )
    await namespace.shows("j", gate)
    assert not await namespace.pods()


@asynccontextmanager
async def cluster_with(
    gate: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[testbed.ControlPlane, Namespace]]:
    """A control plane of its own that has the feature gate, with an operator."""
    with testbed.ControlPlane(gang_scheduling=True, gang_gates=[gate], node_monitor_grace_seconds=600) as cluster:
        operator = OperatorProcess(install(cluster, scheduling_provider="native"), log)
        operator.start()
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        async with Client((await load_access()).configuration) as client:
            yield cluster, Namespace(client, "default")
        operator.stop()


@in_1_37
@pytest.mark.nightly
async def test_the_pods_of_a_gang_share_the_claim_of_their_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one device, so a gang with a claim for each pod waits."""
    async with cluster_with(CLAIMS, tmp_path / "log", monkeypatch) as (cluster, namespace):
        cluster.add_kwok_nodes(2, gpus=1)
        cluster.kubectl.apply(DEVICES)
        claims = {"gpusPerNode": 1, "nodes": 2, "template": {"spec": {"resourceClaims": [SHARED]}}}
        await namespace.apply("each", **claims)
        await namespace.shows("each", "no nodes for all 2 pods together")
        await namespace.delete_job("each")
        await namespace.apply("shares", **claims, scheduling={"sharedClaims": ["net"]})
        await namespace.reaches("shares", "Running")


@pytest.mark.nightly
async def test_a_gang_with_required_topology_gets_nodes_of_one_rack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rack = {"scheduling": {"topology": {"key": "rack", "mode": "required"}}, "gpusPerNode": 1, "nodes": 2}
    async with cluster_with(TOPOLOGY, tmp_path / "log", monkeypatch) as (cluster, racks):
        nodes = cluster.add_kwok_nodes(4, gpus=1)
        for number, node in enumerate(nodes):
            cluster.kubectl("label", "node", node, f"rack={number % 2}")
        await racks.apply("one", gpusPerNode=1, template={"spec": {"nodeSelector": {"rack": "0"}}})
        await racks.reaches("one", "Running")
        for name in ("two", "three"):
            await racks.apply(name, **rack)

        async def waits() -> bool:
            messages = [str((await racks.status(name)).get("message")) for name in ("two", "three")]
            return any("no nodes with the same rack for all 2 pods together" in text for text in messages)

        await racks.has_pods("a gang to have the nodes of rack 1", lambda p: nodes_of_gangs(p) == set(nodes[1::2]))
        await eventually("the other gang to wait", waits)


def nodes_of_gangs(pods: Mapping[str, dict[str, Any]]) -> set[str]:
    return {pod["spec"]["nodeName"] for name, pod in pods.items() if name != "one-1-0" and "nodeName" in pod["spec"]}
