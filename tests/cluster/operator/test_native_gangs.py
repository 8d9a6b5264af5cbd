"""Kubernetes' own gang scheduling, on a control plane that has it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import testbed
from ddpjob_operator.transport.access import load_access
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.resources import Resource
from support import competing_gangs, installation
from support.operator_cluster import Namespace, eventually, kwok_nodes
from support.operator_process import OperatorProcess

pytestmark = pytest.mark.usefixtures("operator_process")

POD_GROUPS = Resource.of_version("scheduling.k8s.io/v1alpha2", "podgroups")
#: Programs whose ranks wait for a lost pod.
WAITING = {"command": ["python", "-m", "ddpjob.launch", "train.py"], "restart": {"inPlace": True}}
#: A gang holds the nodes of a part of it for up to 45 s, and pauses for up to 23 s.
RELEASE_SECONDS = 150.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[testbed.ControlPlane]:
    """A control plane with gang scheduling, in place of the one that other modules share."""
    with testbed.ControlPlane(gang_scheduling=True, node_monitor_grace_seconds=600) as cluster:
        cluster.add_kwok_nodes(1)
        yield cluster


@pytest.fixture(scope="module")
def operator_process(
    cluster: testbed.ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """An operator that discovers the provider, and has the rights of the chart."""
    kubeconfig = installation.install(cluster, scheduling_provider="native")
    process = OperatorProcess(kubeconfig, tmp_path_factory.mktemp("operator") / "log")
    process.start()
    yield process
    process.stop()


@pytest.mark.parametrize("num_trials", [3, pytest.param(20, marks=pytest.mark.nightly)])
async def test_gangs_of_which_one_fits_run_one_after_the_other_and_release_nothing(
    num_trials: int, namespace: Namespace, cluster: testbed.ControlPlane
) -> None:
    with kwok_nodes(cluster, num_trials, gpus=competing_gangs.NUM_GPUS) as nodes:
        pairs = await competing_gangs.compete(namespace, cluster, nodes)
    assert sum(pair.num_given_back for pair in pairs) == 0
    assert sum(pair.num_restarts for pair in pairs) == 0


async def groups_of(namespace: Namespace) -> dict[str, dict[str, Any]]:
    pages = namespace.client.pages(POD_GROUPS, namespace.name)
    return {item["metadata"]["name"]: dict(item) async for page in pages for item in page.items}


def group_name(job: Mapping[str, Any], attempt: int = 1) -> str:
    return f"j-{attempt}-u{job['metadata']['uid'][-3:]}"


async def has_groups(namespace: Namespace, *names: str) -> None:
    async def there() -> bool:
        return set(await groups_of(namespace)) == set(names)

    await eventually(f"the PodGroups to be {names}", there)


async def test_each_attempt_has_a_group_which_goes_with_its_pods(namespace: Namespace) -> None:
    job = await namespace.apply("j", nodes=2)
    status = await namespace.reaches("j", "Running")
    assert status["scheduling"] == {"provider": "native"}
    (group,) = (await groups_of(namespace)).values()
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
    assert [owner["uid"] for owner in group["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]

    await namespace.ends("j-1-1", 1)
    await namespace.reaches("j", "Running", attempt=2)
    await has_groups(namespace, group_name(job, 2))
    assert "j-1-1" in await namespace.pods(), "the failed pod is kept as evidence"

    await namespace.edit("j", suspend=True)
    await namespace.reaches("j", "Suspended", attempt=3)
    await has_groups(namespace)
    await namespace.edit("j", suspend=False)
    await namespace.reaches("j", "Running", attempt=3)
    await has_groups(namespace, group_name(job, 3))

    await namespace.succeeds("j", attempt=3)
    await has_groups(namespace)


async def test_a_lost_pod_is_replaced_in_the_group_of_the_others(
    namespace: Namespace, cluster: testbed.ControlPlane
) -> None:
    """The scheduler counts the pods that run (`Permit` of Kubernetes 1.36's plugin gangscheduling): one node is enough."""
    with kwok_nodes(cluster, 3, gpus=1):
        await namespace.apply("j", nodes=3, gpusPerNode=1, **WAITING)
        await namespace.reaches("j", "Running")
        (before,) = (await groups_of(namespace)).values()
        await namespace.delete_pod("j-1-1")
        await namespace.shows("j", phase="Running", attempt=1, replacedPods=[{"rank": 1, "replacement": 1}])
        pod = (await namespace.pods())["j-1-1-r1"]
        assert pod["spec"]["schedulingGroup"] == {"podGroupName": before["metadata"]["name"]}
        (after,) = (await groups_of(namespace)).values()
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        await namespace.succeeds("j")
        await has_groups(namespace)


async def test_a_replaced_pod_without_a_node_says_so_and_the_gang_releases_its_nodes(
    namespace: Namespace, cluster: testbed.ControlPlane
) -> None:
    with kwok_nodes(cluster, 3, gpus=1):
        await namespace.apply("j", nodes=3, gpusPerNode=1, **WAITING)
        await namespace.reaches("j", "Running")
        node = (await namespace.pods())["j-1-1"]["spec"]["nodeName"]
        cluster.kubectl("cordon", node)
        await namespace.delete_pod("j-1-1")
        await namespace.shows("j", "1 of 3 pods have no node: ")
        await namespace.shows("j", "no nodes for all 3 pods together", attempt=2, seconds=RELEASE_SECONDS)
        cluster.kubectl("uncordon", node)
        await namespace.reaches("j", "Running", attempt=2)
        await namespace.succeeds("j", attempt=2)


async def test_a_gang_with_min_nodes_gets_these_together_runs_on_what_it_gets_and_grows(
    namespace: Namespace, cluster: testbed.ControlPlane
) -> None:
    limits = {"fullSizeSeconds": 10, "fewerNodesSeconds": 1}

    async def says(text: str) -> None:
        async def message() -> bool:
            return text in str((await namespace.status("j")).get("message"))

        await eventually(f"the status to say {text!r}", message)

    with kwok_nodes(cluster, 1, gpus=1) as nodes:
        await namespace.apply("j", nodes=4, minNodes=3, gpusPerNode=1, deadlines=limits)
        await says("no nodes for 3 of the 4 pods together: 0/")
        assert not any("nodeName" in pod["spec"] for pod in (await namespace.pods()).values())
        await namespace.edit("j", minNodes=2)
        await says("no nodes for 2 of the 4 pods together: 0/")
        (group,) = (await groups_of(namespace)).values()
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
        nodes += cluster.add_kwok_nodes(1, gpus=1)
        await says("2 of 4 pods have no node: 0/")
        await says("pods with a node: 2, on which the job continues if the others find none")
        small = await namespace.reaches("j", "Running", attempt=3)
        assert (small["replicas"], small["shrunkFrom"], small["attempt"]) == (2, 4, 3)
        await says("0 of 2 pods that wait for the missing nodes have one")
        nodes += cluster.add_kwok_nodes(2, gpus=1)

        async def grows() -> bool:
            status = await namespace.status("j")
            return (status["phase"], status.get("ready"), status["attempt"]) == ("Running", "4/4", 4)

        await eventually("the job to run on all nodes", grows, 120)
        status = await namespace.status("j")
        assert (status["restarts"]["counted"], status["restarts"]["infrastructure"]) == (0, 0)
        for rank in range(4):
            await namespace.ends(f"j-4-{rank}", 0)
        await namespace.reaches("j", "Succeeded", attempt=4)
        await has_groups(namespace)


async def test_a_group_of_somebody_else_is_left_alone_and_named(namespace: Namespace) -> None:
    spec = {"schedulingPolicy": {"gang": {"minCount": 1}}}
    name = group_name(await namespace.apply("j", suspend=True))
    body = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}
    foreign = await namespace.client.create(POD_GROUPS, namespace.name, body)
    await namespace.edit("j", suspend=False)
    assert (await namespace.shows("j", "exists"))["message"] == (
        f"the API server refuses to create PodGroup {name}: it exists and belongs to no owner, not to this job:"
        " delete it, or rename this job"
    )
    assert (await groups_of(namespace))[name]["metadata"]["uid"] == foreign["metadata"]["uid"]
    await namespace.client.delete(POD_GROUPS, namespace.name, name, uid=foreign["metadata"]["uid"])
    await namespace.reaches("j", "Running")


async def test_pods_are_not_created_while_the_cluster_ignores_their_required_topology(namespace: Namespace) -> None:
    await namespace.apply("j", nodes=2, scheduling={"topology": {"key": "rack", "mode": "required"}})
    await namespace.shows("j", "TopologyAwareWorkloadScheduling")
    assert not await namespace.pods()


@pytest.mark.nightly
async def test_a_gang_with_required_topology_gets_nodes_of_one_rack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rack = {"scheduling": {"topology": {"key": "rack", "mode": "required"}}, "gpusPerNode": 1, "nodes": 2}
    with testbed.ControlPlane(gang_scheduling=True, gang_topology=True, node_monitor_grace_seconds=600) as cluster:
        for number, node in enumerate(cluster.add_kwok_nodes(4, gpus=1)):
            cluster.kubectl("label", "node", node, f"rack={number % 2}")
        operator = OperatorProcess(installation.install(cluster, scheduling_provider="native"), tmp_path / "log")
        operator.start()
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        async with Client((await load_access()).configuration) as client:
            racks = Namespace(client, "default")
            await racks.apply("one", gpusPerNode=1, template={"spec": {"nodeSelector": {"rack": "0"}}})
            await racks.reaches("one", "Running")
            for name in ("two", "three"):
                await racks.apply(name, **rack)

            async def waits() -> bool:
                messages = [str((await racks.status(name)).get("message")) for name in ("two", "three")]
                return any("no nodes with the same rack for all 2 pods together" in text for text in messages)

            await racks.has_pods(
                "a gang to have the nodes of rack 1", lambda p: nodes_of_gangs(p) == {"kwok-1", "kwok-3"}
            )
            await eventually("the other gang to wait", waits)
        operator.stop()


def nodes_of_gangs(pods: Mapping[str, dict[str, Any]]) -> set[str]:
    return {pod["spec"]["nodeName"] for name, pod in pods.items() if name != "one-1-0" and "nodeName" in pod["spec"]}
