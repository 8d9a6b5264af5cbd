"""The cluster under test: two real nodes, the operator as helm installs it, one namespace, and the watches on its jobs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import types
from collections import defaultdict
from pathlib import Path
from typing import Any, Self

import testbed
from chaos.api import Api, Body, Watch
from chaos.recovery import AllMarks, Marks
from chaos.story import Story
from support.helm_release import RELEASE, SYSTEM_NAMESPACE, install, load_images

NAMESPACE = "chaos"
VOLUME = "chaos"
IN_POD = Path(__file__).parent / "pod" / "sitecustomize.py"
LABEL_JOB = "ddpjob.dev/job"

_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_JOBS = f"/apis/ddpjob.dev/v1beta1/namespaces/{NAMESPACE}/ddpjobs"
_OPERATORS = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods?labelSelector=app.kubernetes.io/name=ddpjob-operator"
_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases"


class Laboratory:
    """A context manager: starts everything on entry and leaves nothing behind.

    Attributes:
        cluster: the cluster, whose components may be killed.
        api: its API.
        stories: what the watches showed of each job, by name.
    """

    def __init__(self, *, replicas: int = 1) -> None:
        self.cluster = testbed.Cluster(nodes=2)
        self.replicas = replicas
        self.stories: defaultdict[str, Story] = defaultdict(Story)
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as exit_:
            exit_.enter_context(self.cluster)
            options = load_images(self.cluster)
            install(self.cluster, [*options, *(["--set", f"replicas={self.replicas}"] if self.replicas > 1 else [])])
            self._make_namespace()
            self.api = Api(self.cluster.control_plane)
            for path, changed in ((_JOBS, self._job_changed), (_PODS, self._pod_changed)):
                watch = Watch(self.api, path, changed)
                watch.start()
                exit_.callback(watch.stop)
            self._exit = exit_.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._exit.close()

    # --- Jobs ---------------------------------------------------------------------------------------------------------

    def body(self, name: str) -> Body | None:
        """The job's object; None if it is gone."""
        return self.api.get(f"{_JOBS}/{name}")

    def pods(self, name: str) -> list[Body]:
        """The pods of a job that are there."""
        return list((self.api.get(f"{_PODS}?labelSelector={LABEL_JOB}={name}") or {"items": []})["items"])

    def pod(self, name: str) -> Body | None:
        """A pod; None if it is gone."""
        return self.api.get(f"{_PODS}/{name}")

    def service(self, job: str) -> Body | None:
        """The job's Service; None if it is gone."""
        return self.api.get(f"/api/v1/namespaces/{NAMESPACE}/services/{job}-master")

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

    def processes(self, uid: str) -> list[int]:
        """The process ids, on this machine, of all processes that belong to a job, whatever the cluster thinks of them."""
        return testbed.pids_with(f"DDPJOB_UID={uid}")

    # --- The operator -------------------------------------------------------------------------------------------------

    def operators(self) -> list[Body]:
        """The operator's pods that are not on their way out."""
        listed = self.api.get(_OPERATORS)
        assert listed is not None, "a list is always there"
        return [pod for pod in listed["items"] if "deletionTimestamp" not in pod["metadata"]]

    def lease(self) -> Body | None:
        """The spec of the operator's Lease; None while there is none."""
        listed = self.api.get(_LEASES)
        leases = [lease for lease in (listed or {"items": []})["items"] if RELEASE in lease["metadata"]["name"]]
        return leases[0]["spec"] if leases else None

    def leader(self) -> str | None:
        """The name of the operator's pod that holds the Lease."""
        holder = str((self.lease() or {}).get("holderIdentity", ""))
        names = [pod["metadata"]["name"] for pod in self.operators()]
        return next((name for name in names if holder.startswith(name)), None)

    def kill_operator(self, pod: str) -> None:
        """SIGKILL an operator's process; the kubelet starts it again."""
        os.kill(self.cluster.container_pid(SYSTEM_NAMESPACE, pod, "operator"), signal.SIGKILL)

    def remove_operator(self, pod: str) -> None:
        """Take an operator's pod out of the cluster at once; the Deployment makes another, with another name."""
        self.cluster.kubectl("delete", "pod", pod, f"--namespace={SYSTEM_NAMESPACE}", "--grace-period=0", "--force")

    def renew_operators(self) -> None:
        """Fresh pods for the operator, so that the next one that is killed is not kept waiting by the kubelet's back-off."""
        names = [pod["metadata"]["name"] for pod in self.operators()]
        self.cluster.kubectl("delete", "pod", *names, f"--namespace={SYSTEM_NAMESPACE}", "--wait=false")
        testbed.wait_for(
            "new pods of the operator",
            lambda: not {pod["metadata"]["name"] for pod in self.operators()} & set(names),
            seconds=60,
        )
        self.wait_operators()

    def wait_operators(self) -> None:
        """Wait until all replicas of the operator are ready."""
        testbed.wait_for(
            f"{self.replicas} operators to be ready",
            lambda: sum(map(_ready, self.operators())) == self.replicas,
            seconds=90,
            every_seconds=0.2,
        )

    # --- Health -------------------------------------------------------------------------------------------------------

    def repair(self) -> None:
        """Start what is down, take back what was ordered, and wait until all of it works.

        Raises:
            DeadlineError, ComponentError: the repair fails, so that no further cell would show anything.
        """
        components = self.cluster.control_plane.components
        for component in components.values():
            if not component.alive:
                component.start()
        for node in self.cluster.nodes:
            self.cluster.kubectl("uncordon", node.name)
            node.wait_ready()
        testbed.wait_for(
            "the nodes to have no taint",
            lambda: not any(node["spec"].get("taints") for node in (self.api.get("/api/v1/nodes") or {})["items"]),
            seconds=30,
        )
        self.wait_operators()

    def versions(self) -> dict[str, str]:
        """Of what the figures depend on."""
        nodes = (self.api.get("/api/v1/nodes") or {})["items"]
        facts = nodes[0]["status"]["nodeInfo"]
        commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True)
        return {
            "ddpjob": commit.stdout.strip(),
            "Kubernetes": facts["kubeletVersion"],
            "runtime": facts["containerRuntimeVersion"],
            "kernel": facts["kernelVersion"],
        }

    def _make_namespace(self) -> None:
        self.cluster.add_volume(VOLUME)
        claim = {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
            "volumeName": VOLUME,
        }
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": VOLUME, "namespace": NAMESPACE}
        self.cluster.kubectl.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}},
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": claim},
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {IN_POD.name: IN_POD.read_text()}},
        )

    def _job_changed(self, body: Body, deleted: bool, arrival: float) -> None:
        self.stories[body["metadata"]["name"]].learn_job(body, deleted, arrival)

    def _pod_changed(self, body: Body, deleted: bool, arrival: float) -> None:
        if name := body["metadata"].get("labels", {}).get(LABEL_JOB):
            self.stories[name].learn_pod(body, deleted, arrival)


def _ready(pod: Body) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", []))
