"""Volcano and coscheduling on a real API server: with their kinds alone, and with the real schedulers where they are named.

`DDPJOB_TEST_VOLCANO` and `DDPJOB_TEST_COSCHEDULING` name copies of their repositories with the built programs
(`gang_schedulers.py`).
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import testbed
from ddpjob_operator.scheduling.quantities import number
from ddpjob_operator.transport.resources import PODS, Resource
from support import competing_gangs, gang_schedulers, installation
from support.operator_cluster import Namespace, eventually, kwok_nodes
from support.operator_process import OperatorProcess

pytestmark = pytest.mark.usefixtures("operator_process")

#: How many pods with one GPU the nodes have room for.
NUM_PLACES = 4
#: Programs whose ranks wait for a lost pod.
WAITING = {"command": ["python", "-m", "ddpjob.launch", "train.py"], "restart": {"inPlace": True}}
#: A gang holds the nodes of a part of it for up to 45 s, and pauses for up to 23 s.
RELEASE_SECONDS = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """A scheduler of gangs."""

    provider: str
    group: str
    version: str
    start: Callable[[testbed.ControlPlane, Path], None]
    waits: str
    """What the status says while the scheduler finds no nodes."""
    unseen: str
    """What the status says while no scheduler looks at the gang."""

    def group_of(self, pod: dict[str, Any]) -> object:
        """The PodGroup that the pod names."""
        labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
        return labels.get("scheduling.x-k8s.io/pod-group") or annotations.get("scheduling.k8s.io/group-name")

    @property
    def variable(self) -> str:
        return f"DDPJOB_TEST_{self.provider.upper()}"

    @property
    def pod_groups(self) -> Resource:
        return Resource.of_version(f"{self.group}/{self.version}", "podgroups")


VOLCANO = Scheduler(
    provider="volcano",
    group="scheduling.volcano.sh",
    version="v1beta1",
    start=gang_schedulers.start_volcano,
    waits="queued in default: Volcano has not admitted the PodGroup, which needs cpu: 2500m, nvidia.com/gpu: 5",
    unseen="the scheduler volcano has not considered PodGroup j-1-u",
)
COSCHEDULING = Scheduler(
    provider="coscheduling",
    group="scheduling.x-k8s.io",
    version="v1alpha1",
    start=gang_schedulers.start_coscheduling,
    waits="no nodes for all 5 pods together",
    unseen="the scheduler scheduler-plugins-scheduler has not considered the pods yet",
)
BOTH = (VOLCANO, COSCHEDULING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A scheduler, and whether it is the real one or its kind of objects alone."""

    scheduler: Scheduler
    is_real: bool

    async def places(self, namespace: Namespace, *pods: str) -> None:
        """Wait until these pods have nodes, which the test gives them where there is no scheduler."""
        for name in pods:
            if not self.is_real:
                await eventually(f"{name} to exist", lambda name=name: namespace.find(PODS, name))
                binding = {"target": {"apiVersion": "v1", "kind": "Node", "name": "kwok-0"}, "metadata": {"name": name}}
                resource = Resource(prefix=PODS.prefix, plural=f"pods/{name}/binding")
                await namespace.client.create(resource, namespace.name, binding)
            await eventually(f"{name} to have a node", lambda name=name: has_node(namespace, name))


def cases() -> list[Any]:
    kinds_alone = [pytest.param(Case(scheduler=each, is_real=False), id=each.provider) for each in BOTH]
    real = [
        pytest.param(
            Case(scheduler=each, is_real=True),
            id=f"real {each.provider}",
            marks=pytest.mark.skipif(each.variable not in os.environ, reason=f"{each.variable} names no repository"),
        )
        for each in BOTH
    ]
    return [*kinds_alone, *real]


@pytest.fixture(scope="module", params=cases())
def case(request: pytest.FixtureRequest) -> Case:
    given: Case = request.param
    return given


@pytest.fixture(scope="module")
def cluster(case: Case) -> Iterator[testbed.ControlPlane]:
    """A control plane of its own, since operators of other tests would find the provider on a shared one."""
    with testbed.ControlPlane(node_monitor_grace_seconds=600) as cluster:
        if case.is_real:
            case.scheduler.start(cluster, Path(os.environ[case.scheduler.variable]))
        else:
            cluster.kubectl.apply(definition(case.scheduler))
        cluster.wait_served(f"podgroups.{case.scheduler.group}")
        cluster.add_kwok_nodes(2, gpus=NUM_PLACES // 2)
        yield cluster


def definition(scheduler: Scheduler) -> dict[str, Any]:
    """A CustomResourceDefinition that accepts every PodGroup."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": scheduler.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # The API server wants a reference for groups that end with k8s.io.
        "metadata": {
            "name": f"podgroups.{scheduler.group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
        },
        "spec": {
            "group": scheduler.group,
            "scope": "Namespaced",
            "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
            "versions": [version],
        },
    }


@pytest.fixture(scope="module")
def operator_process(
    cluster: testbed.ControlPlane, case: Case, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """An operator that discovers the provider, and has the rights of the chart."""
    kubeconfig = installation.install(cluster, scheduling_provider=case.scheduler.provider)
    process = OperatorProcess(kubeconfig, tmp_path_factory.mktemp("operator") / "log")
    process.start()
    yield process
    process.stop()


@pytest.fixture
def scheduler(case: Case) -> Scheduler:
    return case.scheduler


@pytest.fixture
def real(case: Case) -> Scheduler:
    if not case.is_real:
        pytest.skip("there are the PodGroups alone, and no scheduler gives their pods nodes")
    return case.scheduler


def group_name(job: Mapping[str, Any], attempt: int = 1) -> str:
    return f"j-{attempt}-u{job['metadata']['uid'][-3:]}"


async def has_groups(namespace: Namespace, scheduler: Scheduler, *names: str) -> None:
    async def there() -> bool:
        pages = namespace.client.pages(scheduler.pod_groups, namespace.name)
        return {item["metadata"]["name"] async for page in pages for item in page.items} == set(names)

    await eventually(f"the PodGroups to be {names}", there)


async def has_node(namespace: Namespace, pod: str) -> bool:
    return "nodeName" in ((await namespace.find(PODS, pod)) or {"spec": {}})["spec"]


async def test_a_gang_waits_with_its_group_and_leaves_nothing_when_it_is_suspended(
    namespace: Namespace, scheduler: Scheduler, case: Case
) -> None:
    resources = {"requests": {"cpu": "500m"}}
    job = await namespace.apply("j", nodes=5, gpusPerNode=1, resources=resources)
    status = await namespace.shows("j", scheduler.waits if case.is_real else scheduler.unseen)
    assert status["scheduling"] == {"provider": scheduler.provider}
    group = await namespace.client.get(scheduler.pod_groups, namespace.name, group_name(job))
    assert group["spec"]["minMember"] == 5
    if scheduler is VOLCANO:
        requested = {resource: number(quantity) for resource, quantity in group["spec"]["minResources"].items()}
        assert requested == {"cpu": Decimal("2.5"), "nvidia.com/gpu": 5}  # Volcano writes 2500m
    assert [owner["uid"] for owner in group["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    await namespace.has_pods("all pods to be created", lambda pods: len(pods) == 5)
    await namespace.edit("j", suspend=True)
    await has_groups(namespace, scheduler)


async def test_the_operator_may_remind_coscheduling_of_pods_that_it_refused_because_of_each_other(
    namespace: Namespace, cluster: testbed.ControlPlane, case: Case
) -> None:
    if case.is_real or case.scheduler is not COSCHEDULING:
        pytest.skip("the test takes the place of the scheduler, and only coscheduling needs to be reminded")
    job = await namespace.apply("j", nodes=2, gpusPerNode=1)
    await namespace.shows("j", COSCHEDULING.unseen)
    refused = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 optimistic rejection in PostFilter.",
    }
    patch = json.dumps({"status": {"conditions": [refused]}})
    cluster.kubectl("patch", "pod", "j-1-0", "j-1-1", "-n", namespace.name, "--subresource=status", "-p", patch)

    async def is_reminded() -> bool:
        group = await namespace.client.get(COSCHEDULING.pod_groups, namespace.name, group_name(job))
        return "ddpjob.dev/refused-pods" in group["metadata"].get("annotations", {})

    await eventually("the PodGroup to change", is_reminded)
    await namespace.shows("j", "no nodes for all 2 pods together")


async def test_each_attempt_has_a_group_which_goes_at_the_end(namespace: Namespace, real: Scheduler) -> None:
    job = await namespace.apply("j", nodes=2, gpusPerNode=1)
    await namespace.reaches("j", "Running")
    await has_groups(namespace, real, group_name(job))
    await namespace.ends("j-1-1", 1)
    await namespace.reaches("j", "Running", attempt=2)
    await has_groups(namespace, real, group_name(job, 2))
    await namespace.succeeds("j", attempt=2)
    await has_groups(namespace, real)


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_lost_pod_is_replaced_in_the_group_of_the_others(
    namespace: Namespace, scheduler: Scheduler, case: Case, rank: int
) -> None:
    """The others count (`pod_groups.py` names the sources), so that the only free place is enough."""
    pods = [f"j-1-{each}" for each in range(NUM_PLACES)]
    lost, successor = pods[rank], f"{pods[rank]}-r1"
    group = group_name(await namespace.apply("j", nodes=NUM_PLACES, gpusPerNode=1, **WAITING))
    await case.places(namespace, *pods)
    await namespace.reaches("j", "Running")
    before = await namespace.client.get(scheduler.pod_groups, namespace.name, group)
    await namespace.delete_pod(lost)
    await case.places(namespace, successor)
    await namespace.shows("j", phase="Running", attempt=1, replacedPods=[{"rank": rank, "replacement": 1}])
    found = await namespace.pods()
    assert {scheduler.group_of(found[pod]) for pod in (successor, pods[2])} == {group}
    after = await namespace.client.get(scheduler.pod_groups, namespace.name, group)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    await namespace.succeeds("j")
    await has_groups(namespace, scheduler)


@pytest.mark.usefixtures("real")
async def test_a_replaced_pod_without_a_node_says_so_and_the_gang_releases_its_nodes(
    namespace: Namespace, cluster: testbed.ControlPlane
) -> None:
    await namespace.apply("j", nodes=NUM_PLACES, gpusPerNode=1, **WAITING)
    await namespace.reaches("j", "Running")
    node = (await namespace.pods())["j-1-1"]["spec"]["nodeName"]
    cluster.kubectl("cordon", node)
    try:
        await namespace.delete_pod("j-1-1")
        await namespace.shows("j", f"1 of {NUM_PLACES} pods have no node: ")

        async def waits_as_a_whole() -> bool:
            status = await namespace.status("j")
            has_nodes = ["nodeName" in pod["spec"] for name, pod in (await namespace.pods()).items() if "j-2-" in name]
            return (status["attempt"], status["phase"]) == (2, "Pending") and has_nodes == [False] * NUM_PLACES

        await eventually("the gang to release its nodes and to wait for all", waits_as_a_whole, RELEASE_SECONDS)
    finally:
        cluster.kubectl("uncordon", node)
    await namespace.reaches("j", "Running", attempt=2)
    await namespace.succeeds("j", attempt=2)


@pytest.mark.usefixtures("real")
@pytest.mark.timeout(600)
async def test_a_preempted_gang_saves_and_runs_again_after_the_other_without_being_counted(
    namespace: Namespace, cluster: testbed.ControlPlane
) -> None:
    """Volcano considers only jobs that the nodes of all pools together have room for, so the other nodes stay free."""
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}}
    cluster.kubectl.apply({**priority, "value": 1000})
    wanted = {"nodes": 2, "gpusPerNode": 1, "template": {"spec": {"nodeSelector": {"pool": namespace.name}}}}
    saved = {"testbed/stop-exit-code": "75", "testbed/exit-message": "checkpointStep=7"}
    with kwok_nodes(cluster, 2, gpus=1) as nodes:
        cluster.kubectl("label", "node", *nodes, f"pool={namespace.name}")
        await namespace.apply("low", **wanted)
        await namespace.reaches("low", "Running")
        for rank in range(2):
            await namespace.client.merge_patch(
                PODS, namespace.name, f"low-1-{rank}", {"metadata": {"annotations": saved}}
            )
        await namespace.apply("high", scheduling={"priorityClassName": "high"}, **wanted)
        await namespace.reaches("high", "Running")
        status = await namespace.reaches("low", "Restarting", attempt=2)
        assert (status["restarts"]["counted"], status["restarts"]["infrastructure"]) == (0, 1)
        assert (status["failure"]["reason"], status["failure"]["checkpointStep"]) == ("Preempted", 7)
        await namespace.succeeds("high")
        await namespace.reaches("low", "Running", attempt=2)


@pytest.mark.usefixtures("real")
@pytest.mark.timeout(600)
async def test_a_gang_with_min_nodes_gets_these_together_runs_on_what_it_gets_and_grows(
    namespace: Namespace, cluster: testbed.ControlPlane, scheduler: Scheduler
) -> None:
    limits = {"fullSizeSeconds": 10, "fewerNodesSeconds": 1}
    template = {"spec": {"nodeSelector": {"pool": namespace.name}}}

    async def runs_on(size: int) -> bool:
        status = await namespace.status("j")
        return (status.get("phase"), status.get("ready")) == ("Running", f"{size}/{size}")

    with kwok_nodes(cluster, 1, gpus=1) as nodes:
        cluster.kubectl("label", "node", *nodes, f"pool={namespace.name}")
        job = await namespace.apply("j", nodes=4, minNodes=2, gpusPerNode=1, deadlines=limits, template=template)
        await has_groups(namespace, scheduler, group_name(job))
        group = await namespace.client.get(scheduler.pod_groups, namespace.name, group_name(job))
        assert group["spec"]["minMember"] == 2
        # Volcano admits a group that the whole cluster has room for, whichever pool it needs.
        await namespace.shows("j", "no nodes for 2 of the 4 pods together")
        assert not any("nodeName" in pod["spec"] for pod in (await namespace.pods()).values())
        nodes += cluster.add_kwok_nodes(1, gpus=1)
        cluster.kubectl("label", "node", *nodes[-1:], f"pool={namespace.name}")
        await eventually("the job to run on two nodes", lambda: runs_on(2), RELEASE_SECONDS)
        assert (await namespace.status("j"))["shrunkFrom"] == 4
        await namespace.shows("j", "0 of 2 pods that wait for the missing nodes have one")
        nodes += cluster.add_kwok_nodes(2, gpus=1)
        cluster.kubectl("label", "node", *nodes[-2:], f"pool={namespace.name}")
        await eventually("the job to run on all nodes", lambda: runs_on(4), RELEASE_SECONDS)
        status = await namespace.status("j")
        assert (status["restarts"]["counted"], status["restarts"]["infrastructure"]) == (0, 0)
        for rank in range(4):
            await namespace.ends(f"j-{status['attempt']}-{rank}", 0)
        await namespace.reaches("j", "Succeeded", status["attempt"])


async def test_a_job_of_another_size_has_a_group_of_this_size(
    namespace: Namespace, cluster: testbed.ControlPlane, scheduler: Scheduler, case: Case
) -> None:
    job = await namespace.apply("j", nodes=NUM_PLACES + 1, gpusPerNode=1)
    await has_groups(namespace, scheduler, group_name(job))
    for attempt, nodes in ((2, NUM_PLACES), (3, 2)):
        cluster.kubectl("scale", "ddpjob", "j", f"--replicas={nodes}", "-n", namespace.name)
        pods = [f"j-{attempt}-{rank}" for rank in range(nodes)]
        await case.places(namespace, *pods)
        status = await namespace.reaches("j", "Running", attempt=attempt)
        assert (status["ready"], status["restarts"]["counted"]) == (f"{nodes}/{nodes}", 0)
        name = group_name(job, attempt)
        await has_groups(namespace, scheduler, name)
        group = await namespace.client.get(scheduler.pod_groups, namespace.name, name)
        assert group["spec"]["minMember"] == nodes
    await namespace.succeeds("j", attempt=3)


@pytest.mark.usefixtures("real")
async def test_gangs_of_which_one_fits_run_one_after_the_other_and_release_nothing(
    namespace: Namespace, cluster: testbed.ControlPlane
) -> None:
    with kwok_nodes(cluster, 3, gpus=competing_gangs.NUM_GPUS) as nodes:
        pairs = await competing_gangs.compete(namespace, cluster, nodes)
    assert sum(pair.num_given_back for pair in pairs) == 0
    assert sum(pair.num_restarts for pair in pairs) == 0
