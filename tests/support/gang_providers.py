"""Schedulers of gangs on a real control plane, behind one interface: what a gang gets its places from, and what it is there.

`PROVIDERS` are those that the test bed builds. `hack/proofs/gang_schedulers.py` puts others in their place.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import testbed
from ddpjob_operator.transport.resources import Resource
from support.operator_cluster import Namespace, eventually
from testbed import kueue, tools

#: Programs whose ranks wait for a lost pod.
WAITING: Mapping[str, Any] = {"command": ["python", "-m", "ddpjob.launch", "train.py"], "restart": {"inPlace": True}}

KUEUE_API = "kueue.x-k8s.io/v1beta2"
WORKLOADS, LOCAL_QUEUES, CLUSTER_QUEUES = (
    Resource.of_version(KUEUE_API, plural) for plural in ("workloads", "localqueues", "clusterqueues")
)
#: Kueue evicts a group of which a pod is replaced and not ready by then. It is as long as any test waits for a pod.
RECOVERY_SECONDS = 120.0
WAIT_FOR_PODS_READY = {
    "timeout": "1h",
    "recoveryTimeout": f"{RECOVERY_SECONDS:.0f}s",
    "requeuingStrategy": {"backoffBaseSeconds": 1},
}


class Places(ABC):
    """A number of places for pods with one GPU each, which the gangs of one namespace compete for."""

    def __init__(self, namespace: Namespace, cluster: testbed.ControlPlane) -> None:
        self.namespace = namespace
        self.cluster = cluster

    @abstractmethod
    async def open(self) -> None:
        """Make what has the places; there are none yet."""

    @abstractmethod
    async def add(self, number: int) -> None:
        """Add places."""

    @abstractmethod
    async def submit(self, name: str, *, priority: str | None = None, **spec: Any) -> None:
        """Create a job whose pods need a place each."""

    @abstractmethod
    def group_of(self, pod: Mapping[str, Any]) -> str:
        """The name of the group that the pod names."""

    @abstractmethod
    async def groups(self) -> Mapping[str, Mapping[str, Any]]:
        """The groups that hold places or wait for some, by name."""

    @abstractmethod
    def size_of(self, group: Mapping[str, Any]) -> int:
        """The number of pods that the group gets places for together."""

    def holds_since(self, group: Mapping[str, Any]) -> object:
        """What changes if the group loses its places, or if it is another one."""
        return group["metadata"]["uid"]

    def misses_pods(self, group: Mapping[str, Any]) -> bool:  # noqa: ARG002 most schedulers do not look at it
        """Whether the scheduler waits for pods in the place of others."""
        return False

    async def running(self, job: str, nodes: int, **spec: Any) -> str:
        """A job of so many pods that all have places and run; gives its group."""
        await self.add(nodes)
        await self.submit(job, nodes=nodes, **spec)
        await self.namespace.reaches(job, "Running")
        return await self.group(job)

    async def group(self, job: str, attempt: int = 1) -> str:
        """The group of this attempt, once it has a pod."""
        pods = await self.namespace.has_pods(f"{job}-{attempt}-0 to exist", lambda pods: f"{job}-{attempt}-0" in pods)
        return self.group_of(pods[f"{job}-{attempt}-0"])

    async def waits(self, job: str, pattern: str, attempt: int = 1) -> dict[str, Any]:
        """Wait until the status says this of a gang, of which no pod may have a place; gives the status."""

        async def said() -> dict[str, Any] | None:
            status = await self.namespace.status(job)
            is_said = re.search(pattern, status.get("message", "")) is not None
            return status if is_said and status.get("attempt") == attempt else None

        try:
            status: dict[str, Any] = await eventually(f"attempt {attempt} of {job} to say {pattern!r}", said)
        except AssertionError as error:
            raise AssertionError(f"{error}; status: {await self.namespace.status(job)}") from error
        assert await self.num_placed(f"{job}-{attempt}-") == 0
        return status

    async def num_placed(self, prefix: str) -> int:
        """The number of pods that have a node and a name that begins so."""
        pods = (await self.namespace.pods()).items()
        return sum(name.startswith(prefix) and "nodeName" in pod["spec"] for name, pod in pods)

    async def close(self) -> None:
        """Delete the jobs, which the operator of another provider would find, and then what has the places."""
        self.cluster.kubectl("delete", "ddpjobs", "--all", "-n", self.namespace.name, "--wait=false")


class QueuePlaces(Places):
    """The quota of a queue of Kueue."""

    num_places = 0

    async def open(self) -> None:
        """Create a queue without quota."""
        name = self.namespace.name
        spec = {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            **self._quota(),
        }
        head = {"apiVersion": KUEUE_API, "kind": "ClusterQueue", "metadata": {"name": name}}
        await self.namespace.client.create(CLUSTER_QUEUES, None, {**head, "spec": spec})
        head = {"apiVersion": KUEUE_API, "kind": "LocalQueue", "metadata": {"name": "team-a"}}
        await self.namespace.client.create(LOCAL_QUEUES, name, {**head, "spec": {"clusterQueue": name}})

    async def add(self, number: int) -> None:
        """Raise the quota."""
        self.num_places += number
        patch = json.dumps({"spec": self._quota()})
        self.cluster.kubectl("patch", "clusterqueue", self.namespace.name, "--type=merge", "-p", patch)

    def _quota(self) -> dict[str, Any]:
        quota = {"name": "default", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": self.num_places}]}
        return {"resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [quota]}]}

    async def submit(self, name: str, *, priority: str | None = None, **spec: Any) -> None:
        """Create a job in the queue."""
        scheduling = {"queueName": "team-a", **({"priorityClassName": priority} if priority else {})}
        await self.namespace.apply(name, gpusPerNode=1, scheduling=scheduling, **spec)

    def group_of(self, pod: Mapping[str, Any]) -> str:
        """A label of the pod."""
        return str(pod["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"])

    async def groups(self) -> Mapping[str, Mapping[str, Any]]:
        """The Workloads that have not finished, and those of which Kueue holds pods."""
        held = {
            self.group_of(pod)
            for pod in (await self.namespace.pods()).values()
            if "kueue.x-k8s.io/managed" in pod["metadata"].get("finalizers", ())
        }
        return {
            name: workload
            for name, workload in (await self.namespace.all(WORKLOADS)).items()
            if name in held or _conditions(workload).get("Finished") != "True"
        }

    def size_of(self, group: Mapping[str, Any]) -> int:
        """The number of pods that are admitted."""
        (pod_set,) = group["spec"]["podSets"]
        return int(pod_set["count"])

    def holds_since(self, group: Mapping[str, Any]) -> object:
        """Which Workload it is, and since when it has its quota."""
        (reserved,) = [c for c in group["status"]["conditions"] if c["type"] == "QuotaReserved"]
        return (group["metadata"]["uid"], reserved["status"], reserved["lastTransitionTime"])

    def misses_pods(self, group: Mapping[str, Any]) -> bool:
        """What Kueue says of the Workload."""
        conditions = _conditions(group)
        return conditions["Admitted"] != "True" or conditions.get("WaitingForReplacementPods", "False") != "False"


def _conditions(workload: Mapping[str, Any]) -> dict[str, str]:
    return {c["type"]: c["status"] for c in workload.get("status", {}).get("conditions", ())}


def _at(body: Any, path: Sequence[str]) -> Any:
    return reduce(lambda part, name: part[name], path, body)


class NodePlaces(Places):
    """Nodes with one GPU each, for gangs that are PodGroups: of this API group, and where pods and groups say what."""

    api_group: str
    name_of_group: Sequence[str]
    least_pods: Sequence[str] = ("spec", "minMember")

    def group_of(self, pod: Mapping[str, Any]) -> str:
        """What the pod says."""
        return str(_at(pod, self.name_of_group))

    def size_of(self, group: Mapping[str, Any]) -> int:
        """Its least number of pods."""
        return int(_at(group, self.least_pods))

    async def open(self) -> None:
        """Find the version of PodGroups that the control plane serves."""
        served = self.cluster.kubectl("api-resources", f"--api-group={self.api_group}", "--no-headers").splitlines()
        (self.version,) = [fields[-3] for line in served if (fields := line.split())[0] == "podgroups"]
        self.pod_groups = Resource.of_version(self.version, "podgroups")
        self.nodes: list[str] = []

    async def add(self, number: int) -> None:
        """Add nodes."""
        nodes = self.cluster.add_kwok_nodes(number, gpus=1)
        self.nodes += nodes
        self.cluster.kubectl("label", "node", *nodes, f"pool={self.namespace.name}")

    async def submit(self, name: str, *, priority: str | None = None, **spec: Any) -> None:
        """Create a job for these nodes."""
        scheduling = {"priorityClassName": priority} if priority else {}
        template = {"spec": {"nodeSelector": {"pool": self.namespace.name}}}
        await self.namespace.apply(name, gpusPerNode=1, scheduling=scheduling, template=template, **spec)

    async def groups(self) -> Mapping[str, Mapping[str, Any]]:
        """All PodGroups."""
        return await self.namespace.all(self.pod_groups)

    async def close(self) -> None:
        """Also delete the nodes."""
        await super().close()
        if self.nodes:
            self.cluster.kubectl("delete", "node", *self.nodes, "--wait=false")


class NativePlaces(NodePlaces):
    """Nodes of Kubernetes' own scheduler of gangs."""

    api_group = "scheduling.k8s.io"
    name_of_group = ("spec", "schedulingGroup", "podGroupName")
    least_pods = ("spec", "schedulingPolicy", "gang", "minCount")


class VolcanoPlaces(NodePlaces):
    """Nodes of Volcano's scheduler."""

    api_group = "scheduling.volcano.sh"
    name_of_group = ("metadata", "annotations", "scheduling.k8s.io/group-name")


class CoschedulingPlaces(NodePlaces):
    """Nodes of a scheduler with the plugin coscheduling."""

    api_group = "scheduling.x-k8s.io"
    name_of_group = ("metadata", "labels", "scheduling.x-k8s.io/pod-group")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """What schedules gangs on a control plane."""

    name: str
    """As in the setting of the operator."""
    places: Callable[[Namespace, testbed.ControlPlane], Places]
    start: Callable[[testbed.ControlPlane], None] | None = None
    """Starts it on a control plane, unless its program is one that each control plane has."""
    waits: str
    """A pattern of what the status says of a gang of two pods for which there are too few places."""
    places_fewer: bool
    """Whether it gives places to minNodes of a gang, and to the other pods one by one."""
    preempts: bool
    """Whether it preempts a gang for one of a higher priority."""
    keeps_group: bool
    """Whether a restart is in the group of the attempt before, which keeps its places."""


def start_kueue(cluster: testbed.ControlPlane) -> None:
    """Start the real Kueue, with nodes for all that it admits."""
    kueue.start(cluster, waitForPodsReady=WAIT_FOR_PODS_READY)
    cluster.kubectl("label", "node", *cluster.add_kwok_nodes(2, gpus=16), "pool=queues")
    flavor = {"apiVersion": KUEUE_API, "kind": "ResourceFlavor", "metadata": {"name": "default"}}
    cluster.kubectl.apply({**flavor, "spec": {"nodeLabels": {"pool": "queues"}}})


KUEUE = Provider(
    name="kueue",
    start=start_kueue,
    places=QueuePlaces,
    waits="queued in team-a: quota gpu: ",
    places_fewer=False,
    preempts=True,
    keeps_group=True,
)
NATIVE = Provider(
    name="native",
    places=NativePlaces,
    waits="no nodes for all 2 pods together",
    places_fewer=True,
    preempts=tools.release() >= (1, 37),
    keeps_group=False,
)
PROVIDERS = [KUEUE, NATIVE]

# The test bed has only the kinds of these two, so their schedulers have to be started by somebody else.
VOLCANO = Provider(
    name="volcano",
    places=VolcanoPlaces,
    waits="Volcano has not admitted the PodGroup|no nodes for all 2 pods together",
    places_fewer=True,
    preempts=True,
    keeps_group=False,
)
COSCHEDULING = replace(VOLCANO, name="coscheduling", places=CoschedulingPlaces, waits=NATIVE.waits)
