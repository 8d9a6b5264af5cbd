"""The cluster under test: two real nodes, the operator as helm installs it, and one namespace with a volume."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import testbed
from chaos.marks import AllMarks, Marks
from ddpjob.client import Client
from ddpjob_operator.transport.errors import NotFoundError
from ddpjob_operator.transport.resources import LEASES, NODES, PODS, SERVICES, Resource
from support.helm_release import RELEASE, SYSTEM_NAMESPACE, install, load_images

NAMESPACE = "chaos"
VOLUME = "chaos"
IN_POD = Path(__file__).parent / "pod" / "sitecustomize.py"
LABEL_JOB = "ddpjob.dev/job"

Body = dict[str, Any]


class Laboratory:
    """What may be done to the cluster, and what is looked at.

    Attributes:
        cluster: the cluster, whose components may be killed.
        client: the client of a user with all rights.
    """

    def __init__(self, cluster: testbed.Cluster, client: Client, *, replicas: int) -> None:
        self.cluster, self.client, self.replicas = cluster, client, replicas

    # --- Jobs ---------------------------------------------------------------------------------------------------------

    def pods(self, job: str) -> list[Body]:
        """The pods of a job that are there."""
        return self._list(PODS, NAMESPACE, f"{LABEL_JOB}={job}")

    def service(self, job: str) -> Body | None:
        """The job's Service; None if it is gone."""
        try:
            return dict(self.client.call(self.client.asynchronous.api.get(SERVICES, NAMESPACE, f"{job}-master")))
        except NotFoundError:
            return None

    def patch(self, name: str, spec: dict[str, Any]) -> None:
        """Edit a job's spec as a user does."""
        change = json.dumps({"spec": spec})
        self.cluster.kubectl("patch", "ddpjob", name, f"--namespace={NAMESPACE}", "--type=merge", f"--patch={change}")

    @property
    def volume(self) -> Path:
        """The folder of this machine that every rank sees as /checkpoints."""
        return self.cluster.control_plane.folder / "volumes" / VOLUME

    def marks(self, name: str) -> AllMarks:
        """What the ranks of a job left behind, by attempt and rank."""
        found = {}
        for file in (self.volume / "marks" / name).glob("*-*"):
            attempt, rank = file.name.split("-")
            found[int(attempt), int(rank)] = Marks.parse(file.read_text())
        return found

    # --- The operator -------------------------------------------------------------------------------------------------

    def operators(self) -> list[Body]:
        """The operator's pods that are not on their way out."""
        pods = self._list(PODS, SYSTEM_NAMESPACE, "app.kubernetes.io/name=ddpjob-operator")
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def lease(self) -> Body | None:
        """The spec of the operator's Lease; None while there is none."""
        leases = self._list(LEASES, SYSTEM_NAMESPACE)
        return next((lease["spec"] for lease in leases if RELEASE in lease["metadata"]["name"]), None)

    def leader(self) -> str | None:
        """The name of the operator's pod that holds the Lease."""
        holder = str((self.lease() or {}).get("holderIdentity", ""))
        return next((name for name in map(_name, self.operators()) if holder.startswith(name)), None)

    def kill_operator(self, pod: str) -> None:
        """SIGKILL an operator's process; the kubelet starts it again."""
        os.kill(self.cluster.container_pid(SYSTEM_NAMESPACE, pod, "operator"), signal.SIGKILL)

    def remove_operators(self, *pods: str, options: tuple[str, ...] = ("--wait=false",)) -> None:
        """Delete pods of the operator; the Deployment makes others, with other names."""
        self.cluster.kubectl("delete", "pod", *pods, f"--namespace={SYSTEM_NAMESPACE}", *options)

    def renew_operators(self) -> None:
        """Fresh pods for the operator, so that the next one that is killed is not kept waiting by the kubelet's back-off."""
        names = set(map(_name, self.operators()))
        self.remove_operators(*names)
        testbed.wait_for("new pods of the operator", lambda: names.isdisjoint(map(_name, self.operators())), seconds=60)
        self.wait_operators()

    def wait_operators(self) -> None:
        """Wait until all replicas of the operator are ready."""
        testbed.wait_for(
            f"{self.replicas} operators to be ready",
            lambda: sum(map(_ready, self.operators())) == self.replicas,
            seconds=90,
        )

    # --- Health -------------------------------------------------------------------------------------------------------

    def repair(self) -> None:
        """Start what is down, take back what was ordered, and wait until all of it works.

        Raises:
            DeadlineError, ComponentError: the repair fails, so that no further cell would show anything.
        """
        for component in self.cluster.control_plane.components.values():
            if not component.alive:
                component.start()
        for node in self.cluster.nodes:
            self.cluster.kubectl("uncordon", node.name)
            node.wait_ready()
        testbed.wait_for("the nodes to have no taint", lambda: not any(map(_taints, self.nodes())), seconds=30)
        self.wait_operators()

    def nodes(self) -> list[Body]:
        """All Node objects."""
        return self._list(NODES, None)

    def _list(self, resource: Resource, namespace: str | None, labels: str = "") -> list[Body]:
        async def listed() -> list[Body]:
            pages = self.client.asynchronous.api.pages(resource, namespace, labels)
            return [dict(item) async for page in pages for item in page.items]

        return self.client.call(listed())


@contextlib.contextmanager
def laboratory(cluster: testbed.Cluster, *, replicas: int = 2) -> Iterator[Laboratory]:
    """This cluster with so many operators; afterwards it has one, as before."""
    options = load_images(cluster)
    install(cluster, [*options, "--set", f"replicas={replicas}"])
    cluster.add_volume(VOLUME)
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}, "volumeName": VOLUME}
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": VOLUME, "namespace": NAMESPACE}
    cluster.kubectl.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": claim},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {IN_POD.name: IN_POD.read_text()}},
    )
    with Client(kubeconfig=str(cluster.kubeconfig), namespace=NAMESPACE) as client:
        yield Laboratory(cluster, client, replicas=replicas)
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    install(cluster, [*options, "--set", "replicas=1"])


def _name(pod: Body) -> str:
    return str(pod["metadata"]["name"])


def _ready(pod: Body) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", []))


def _taints(node: Body) -> object:
    return node["spec"].get("taints")
