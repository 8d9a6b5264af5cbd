"""Jobs in a queue of Kueue, on a real API server: with a stand-in, and with the real one where DDPJOB_TEST_KUEUE names it."""

import itertools
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import testbed
from ddpjob_operator.transport.resources import PODS
from support import kueue_program, kueue_stand_in
from support.kueue_stand_in import CLUSTER_QUEUES, LOCAL_QUEUES, WORKLOADS
from support.operator_cluster import GARBAGE_COLLECTOR_SECONDS, Namespace, eventually
from support.operator_process import OperatorProcess

REPOSITORY = Path(__file__).parents[3]
PROGRAM = os.environ.get("DDPJOB_TEST_KUEUE")
REAL = pytest.mark.skipif(not PROGRAM, reason="DDPJOB_TEST_KUEUE does not name the program of Kueue")
#: A pod that never had a node counts as ended when the pod garbage collector has been there, which it is every 20 s.
POD_COLLECTOR_SECONDS = 240.0
QUOTA = 2
#: The real Kueue evicts a group of which a pod is replaced and not ready by then. It is as long as any test waits for a pod.
RECOVERY_SECONDS = 120.0
WAIT_FOR_PODS_READY = {
    "timeout": "1h",
    "recoveryTimeout": f"{RECOVERY_SECONDS:.0f}s",
    "requeuingStrategy": {"backoffBaseSeconds": 1},
}
_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=["stand-in", pytest.param("real", marks=REAL)])
def cluster(request: pytest.FixtureRequest) -> Iterator[testbed.ControlPlane]:
    """A control plane of its own, since operators of other tests would find Kueue on a shared one."""
    with testbed.ControlPlane() as cluster:
        cluster.kubectl("apply", "--server-side", "-f", str(REPOSITORY / "manifests/crd"))
        cluster.wait_served("ddpjobs.ddpjob.dev")
        cluster.add_kwok_nodes(2, gpus=16)
        if request.param == "real":
            assert PROGRAM is not None, "it is skipped otherwise"
            kueue_program.start(cluster, Path(PROGRAM), waitForPodsReady=WAIT_FOR_PODS_READY)
        else:
            start_stand_in(cluster)
        flavor = {"apiVersion": kueue_stand_in.API, "kind": "ResourceFlavor", "metadata": {"name": "default"}}
        priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        values = {"high": 1000, "low": -1000}
        priorities = [{**priority, "metadata": {"name": name}, "value": value} for name, value in values.items()]
        cluster.kubectl.apply(flavor, priorities)
        wait_for_gates(cluster)
        yield cluster


def start_stand_in(cluster: testbed.ControlPlane) -> None:
    cluster.kubectl.apply(kueue_stand_in.definitions(), kueue_stand_in.admission())
    for body in kueue_stand_in.definitions():
        cluster.wait_served(body["metadata"]["name"])
    roots = os.pathsep.join(str(REPOSITORY / folder) for folder in ("operator", "trainer", "tests"))
    cluster.component(
        "kueue",
        kueue_stand_in.__file__,
        program=Path(sys.executable),
        ready=lambda: True,
        environment={"KUBECONFIG": str(cluster.kubeconfig), "PYTHONPATH": roots},
    ).start()


def wait_for_gates(cluster: testbed.ControlPlane) -> None:
    """A new admission policy or webhook applies after a moment."""
    metadata = {"name": "probe", "namespace": "default", "labels": {"kueue.x-k8s.io/queue-name": "none"}}
    spec = {"containers": [{"name": "c", "image": "i"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def is_gated() -> bool:
        answer = cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(pod))
        return "schedulingGates" in json.loads(answer)["spec"]

    testbed.wait_for("pods of a queue to be gated", is_gated, seconds=240)


@pytest.fixture(scope="module")
def operator_process(
    cluster: testbed.ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """The operator, which finds Kueue by itself."""
    process = OperatorProcess(cluster.kubeconfig, tmp_path_factory.mktemp("operator") / "log")
    process.start()
    yield process
    process.stop()


@dataclass(frozen=True)
class Queue:
    """A queue with a quota of 2 GPUs, and the namespace of its jobs, each of which wants both."""

    namespace: Namespace

    async def submit(self, name: str, *, priority: str | None = None, nodes: int = QUOTA, **spec: Any) -> None:
        scheduling = {"queueName": "team-a", **({"priorityClassName": priority} if priority else {})}
        await self.namespace.apply(name, nodes=nodes, gpusPerNode=1, scheduling=scheduling, **spec)

    async def waits(self, name: str, message: str, attempt: int = 1, nodes: int = QUOTA) -> None:
        await self.namespace.shows(name, message, reason="Queued", attempt=attempt)
        pods = await self.pods(name, attempt, nodes)
        assert all("schedulingGates" in pod["spec"] for pod in pods)

    async def pods(self, name: str, attempt: int, nodes: int = QUOTA) -> list[dict[str, Any]]:
        """All pods of the attempt, once they exist: a status may be about the first of them."""
        names = {f"{name}-{attempt}-{rank}" for rank in range(nodes)}
        pods = await self.namespace.has_pods(f"the pods {sorted(names)} to exist", lambda pods: names <= pods.keys())
        return [pods[each] for each in sorted(names)]

    async def group(self, name: str, attempt: int = 1, nodes: int = QUOTA) -> str:
        pods = await self.pods(name, attempt, nodes)
        (group,) = {pod["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] for pod in pods}
        return str(group)

    async def workload(self, group: str) -> dict[str, Any]:
        return dict(await self.namespace.client.get(WORKLOADS, self.namespace.name, group))

    async def is_released(self, group: str) -> bool:
        """Whether the group holds no quota, and Kueue none of its pods."""
        workload = await self.namespace.find(WORKLOADS, group)
        pods = [
            pod
            for pod in (await self.namespace.pods()).values()
            if pod["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] == group
        ]
        ended = workload is None or any(
            (c["type"], c["status"]) == ("Finished", "True") for c in workload.get("status", {}).get("conditions", ())
        )
        return ended and not any(pod["metadata"].get("finalizers") for pod in pods)


@pytest.fixture
async def queue(namespace: Namespace, operator_process: OperatorProcess) -> Queue:  # noqa: ARG001 it runs the jobs
    client, name = namespace.client, f"queue-{next(_numbers)}"
    quota = {"name": "default", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": QUOTA}]}
    spec = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [quota]}],
    }
    head = {"apiVersion": kueue_stand_in.API, "kind": "ClusterQueue", "metadata": {"name": name}}
    await client.create(CLUSTER_QUEUES, None, {**head, "spec": spec})
    head = {"apiVersion": kueue_stand_in.API, "kind": "LocalQueue", "metadata": {"name": "team-a"}}
    await client.create(LOCAL_QUEUES, namespace.name, {**head, "spec": {"clusterQueue": name}})
    return Queue(namespace)


async def test_a_job_waits_for_quota_and_a_restart_keeps_it(queue: Queue) -> None:
    space = queue.namespace
    await queue.submit("a")
    await space.reaches("a", "Running")
    group = await queue.group("a")
    await queue.submit("b")
    await queue.waits("b", f"queued in team-a: quota gpu: 2 of 2 used by {space.name}/a")
    await queue.submit("c", priority="low")
    await queue.waits("c", "queued in team-a: 1 job before it")

    await space.ends("a-1-1", 1, "ValueError: boom")
    status = await space.reaches("a", "Running", attempt=2)
    assert status["restarts"]["counted"] == 1
    assert await queue.group("a", attempt=2) == group
    await queue.waits("b", f"used by {space.name}/a")

    await space.succeeds("a", attempt=2)
    await space.reaches("b", "Running")
    await eventually("the pods of a to be released", lambda: queue.is_released(group))
    assert {"a-1-1", "a-2-0", "a-2-1"} <= set(await space.pods()), "pods with logs stay"


async def test_a_preempted_job_saves_waits_and_runs_again_without_being_counted(queue: Queue) -> None:
    space = queue.namespace
    await queue.submit("low")
    await space.reaches("low", "Running")
    group = await queue.group("low")
    await queue.submit("high", priority="high")
    await space.reaches("high", "Running")
    status = await space.shows("low", attempt=2, reason="Queued")
    assert (status["restarts"]["counted"], status["restarts"]["infrastructure"]) == (0, 1)
    assert status["failure"]["reason"] == "Preempted"
    assert await queue.group("low", attempt=2) == group

    await space.succeeds("high")
    await space.reaches("low", "Running", attempt=2)


async def test_a_job_that_ends_or_is_suspended_or_deleted_returns_its_quota(queue: Queue) -> None:
    space = queue.namespace
    await queue.submit("early")
    await space.reaches("early", "Running")
    groups = [await queue.group("early")]

    async def follows(name: str) -> None:
        """One at a time: Kueue does not say which of two jobs of the same second comes first."""
        await queue.submit(name, restart={"maxRestarts": 0})
        await queue.waits(name, "queued in team-a")
        groups.append(await queue.group(name))

    await follows("waits")
    await space.delete_job("waits")  # its pods never have a node
    await follows("fails")
    await space.edit("early", suspend=True)
    await space.reaches("early", "Suspended", attempt=2)
    await space.reaches("fails", "Running")
    await follows("deleted")
    await space.ends("fails-1-0", 1, "ValueError: boom")
    await space.reaches("fails", "Failed")
    await space.reaches("deleted", "Running")
    assert "fails-1-0" in await space.pods(), "a failed job keeps its evidence"
    await follows("last")
    await space.delete_job("deleted")
    await space.reaches("last", "Running")

    await space.edit("early", suspend=False)
    await queue.waits("early", f"used by {space.name}/last", attempt=2)
    assert await queue.group("early", attempt=2) not in groups

    async def are_released() -> bool:
        return all([await queue.is_released(group) for group in groups[:-1]])

    await eventually("the groups of the other jobs to be released", are_released, POD_COLLECTOR_SECONDS)
    await space.has_pods(
        "the pods of deleted jobs to go",
        lambda pods: not any(name.startswith(("deleted-", "waits-")) for name in pods),
        GARBAGE_COLLECTOR_SECONDS,
    )


async def test_after_a_rank_has_succeeded_a_restart_has_a_new_group(queue: Queue) -> None:
    """Kueue takes the pod that has succeeded for a member of the group for good, and one of the new ones for too many."""
    space = queue.namespace
    await queue.submit("j")
    await space.reaches("j", "Running")
    first = await queue.group("j")
    await space.ends("j-1-0", 0)
    await space.has_pods("rank 0 to succeed", lambda pods: bool(pods["j-1-0"]["status"]["phase"] == "Succeeded"))
    await space.ends("j-1-1", 1, "ValueError: boom")
    await space.reaches("j", "Running", attempt=2)
    assert await queue.group("j", attempt=2) != first
    await eventually("the first group to be released", lambda: queue.is_released(first))
    assert await space.find(PODS, "j-1-1") is not None


#: Programs whose ranks wait for a lost pod.
WAITING = {"command": ["python", "-m", "ddpjob.launch", "train.py"], "restart": {"inPlace": True}}


def admitted_since(workload: dict[str, Any]) -> tuple[str, str]:
    """Which Workload it is, and since when it has its quota."""
    (admitted,) = [c for c in workload["status"]["conditions"] if c["type"] == "QuotaReserved"]
    assert admitted["status"] == "True"
    return workload["metadata"]["uid"], admitted["lastTransitionTime"]


async def has_replaced(queue: Queue, name: str, rank: int) -> None:
    """Wait for the pod of this rank to be replaced in the first attempt, in the same group."""
    space = queue.namespace
    await space.shows(name, phase="Running", attempt=1, replacedPods=[{"rank": rank, "replacement": 1}])
    pods = await space.pods()
    other, successor = pods[f"{name}-1-{1 - rank}"]["metadata"], pods[f"{name}-1-{rank}-r1"]["metadata"]
    group = other["labels"]["kueue.x-k8s.io/pod-group-name"]
    assert successor["labels"]["kueue.x-k8s.io/pod-group-name"] == group
    assert "deletionTimestamp" not in other

    async def nothing_is_missing() -> bool:
        status = (await queue.workload(group))["status"]
        conditions = {c["type"]: c["status"] for c in status["conditions"]}
        return conditions["Admitted"] == "True" and conditions.get("WaitingForReplacementPods", "False") == "False"

    await eventually("Kueue to count the new pod", nothing_is_missing)


@pytest.mark.parametrize("is_deleted", [False, True], ids=["killed", "deleted"])
@pytest.mark.parametrize("rank", range(QUOTA))
async def test_a_lost_pod_is_replaced_in_its_group_while_the_other_waits(
    queue: Queue, rank: int, is_deleted: bool
) -> None:
    """ "Retrying Failed Pods" in Kueue's `keps/976-plain-pods/README.md`."""
    space, lost = queue.namespace, f"j-1-{rank}"
    await queue.submit("j", **WAITING)
    await space.reaches("j", "Running")
    group = await queue.group("j")
    before = admitted_since(await queue.workload(group))
    await queue.submit("b")
    await queue.waits("b", f"used by {space.name}/j")
    await (space.delete_pod(lost) if is_deleted else space.ends(lost, 137))
    await has_replaced(queue, "j", rank)
    await queue.waits("b", f"used by {space.name}/j")
    assert admitted_since(await queue.workload(group)) == before, "the group had its quota all the time"
    await space.has_pods(
        "Kueue to release the lost pod, which stays as evidence unless it was deleted",
        lambda pods: lost not in pods if is_deleted else not pods[lost]["metadata"].get("finalizers"),
    )
    await space.succeeds("j")
    await space.reaches("b", "Running")


async def test_a_pod_on_a_lost_node_is_replaced_in_its_group(queue: Queue, cluster: testbed.ControlPlane) -> None:
    """Kueue counts such a pod (`isPodRunnableOrSucceeded` in pod_controller.go), and would delete the new one."""
    space = queue.namespace
    await queue.submit("j", **WAITING)
    await space.reaches("j", "Running")
    never_stops = {"metadata": {"annotations": {"testbed/stop-after": "1h"}}}
    await space.client.merge_patch(PODS, space.name, "j-1-1", never_stops)
    node = (await space.pods())["j-1-1"]["spec"]["nodeName"]
    taint = "node.kubernetes.io/out-of-service"
    cluster.kubectl("taint", "node", node, f"{taint}=:NoSchedule")
    try:
        await space.delete_pod("j-1-1", grace_seconds=1)
        await has_replaced(queue, "j", 1)
        assert "j-1-1" not in await space.pods()
    finally:
        cluster.kubectl("taint", "node", node, f"{taint}-")


@pytest.mark.parametrize("cluster", [pytest.param("real", marks=REAL)], indirect=True)
@pytest.mark.timeout(1200)
async def test_a_group_whose_replaced_pod_is_not_ready_in_time_waits_in_the_queue_again(
    queue: Queue, cluster: testbed.ControlPlane
) -> None:
    """`WorkloadWaitForRecovery` in Kueue's `pkg/controller/core/workload_controller.go`."""
    space = queue.namespace
    await queue.submit("j", **WAITING)
    await space.reaches("j", "Running")
    group = await queue.group("j")
    await queue.submit("b")
    await queue.waits("b", f"used by {space.name}/j")
    nodes = cluster.kubectl("get", "nodes", "--output=name").split()
    cluster.kubectl("cordon", *nodes)
    try:
        await space.delete_pod("j-1-1")

        async def is_evicted() -> bool:
            conditions = (await queue.workload(group))["status"]["conditions"]
            return ("Evicted", "PodsReadyTimeout") in {(c["type"], c["reason"]) for c in conditions}

        await eventually("Kueue to evict the group", is_evicted, 2 * RECOVERY_SECONDS)
    finally:
        cluster.kubectl("uncordon", *nodes)
    await space.reaches("b", "Running")
    await queue.waits("j", f"used by {space.name}/b", attempt=(await space.status("j"))["attempt"])
    await space.succeeds("b")
    status = await space.reaches("j", "Running", attempt=(await space.status("j"))["attempt"])
    assert status["restarts"]["counted"] == 0


async def test_a_job_of_another_size_waits_in_the_queue_again(queue: Queue, cluster: testbed.ControlPlane) -> None:
    """Kueue never changes the size of a group, and considers Workloads by their age."""
    space = queue.namespace
    await queue.submit("j")
    await space.reaches("j", "Running")
    first = await queue.group("j")
    await queue.submit("b")
    await queue.waits("b", f"used by {space.name}/j")
    for pod in await queue.pods("j", attempt=1):  # so that the Workload of b is older by a second at least
        later = {"metadata": {"annotations": {"testbed/stop-after": "2s", "testbed/stop-exit-code": "75"}}}
        await space.client.merge_patch(PODS, space.name, pod["metadata"]["name"], later)
    cluster.kubectl("scale", "ddpjob", "j", "--replicas=1", "-n", space.name)
    await space.reaches("b", "Running")
    await queue.waits("j", "queued in team-a: ", attempt=2, nodes=1)
    second = await queue.group("j", attempt=2, nodes=1)
    assert second != first
    assert await queue.is_released(first)
    assert [pod_set["count"] for pod_set in (await queue.workload(second))["spec"]["podSets"]] == [1]
    await space.succeeds("b")
    status = await space.reaches("j", "Running", attempt=2)
    assert (status["ready"], status["restarts"]["counted"], status["restarts"]["infrastructure"]) == ("1/1", 0, 0)


async def test_a_job_that_wants_more_than_the_quota_says_so_and_runs_once_it_wants_less(
    queue: Queue, cluster: testbed.ControlPlane
) -> None:
    space = queue.namespace
    await queue.submit("j", nodes=3, minNodes=2)
    await queue.waits("j", "queued in team-a: quota gpu: 3 requested", nodes=3)
    status = await space.status("j")
    assert status["message"].endswith("minNodes has no effect, since the scheduling provider is kueue")
    cluster.kubectl("scale", "ddpjob", "j", "--replicas=2", "-n", space.name)
    restarts = (await space.shows("j", phase="Running", ready="2/2"))["restarts"]
    assert (restarts["counted"], restarts["infrastructure"]) == (0, 0)
