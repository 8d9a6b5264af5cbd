"""One DDPJob on a real cluster, as its user sees it: through kubectl."""

import contextlib
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import testbed
from support.helm_release import RELEASE, SYSTEM_NAMESPACE
from testbed.kubectl import Kubectl, KubectlError

#: Small enough for a dozen pods on two nodes of a machine with two cores, and a fair share of them when it is busy.
RESOURCES = {"requests": {"cpu": "250m", "memory": "256Mi"}}
TERMINAL = ("Succeeded", "Failed")


@contextlib.contextmanager
def fresh_namespace(kubectl: Kubectl) -> Iterator[str]:
    """A new namespace that enforces the pod security standard `restricted`; gone afterwards, with all in it."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    try:
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=false")


@dataclass
class JobOnCluster:
    """A job in a namespace; `name` is known once it is applied."""

    kubectl: Kubectl
    namespace: str
    name: str = ""

    def apply_file(self, path: Path) -> None:
        """Apply a manifest file as a user does, and follow the DDPJob in it."""
        self.kubectl("apply", "-n", self.namespace, "-f", str(path))
        documents = yaml.safe_load_all(path.read_text())
        self.name = next(document["metadata"]["name"] for document in documents if document["kind"] == "DDPJob")

    def apply(self, name: str, **spec: Any) -> None:
        """Apply a DDPJob with this spec."""
        self.name = name
        self.kubectl.apply(
            {
                "apiVersion": "ddpjob.dev/v1beta1",
                "kind": "DDPJob",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"resources": RESOURCES, **spec},
            }
        )

    def apply_script(self, name: str, text: str, pod_spec: Mapping[str, Any] | None = None, **spec: Any) -> None:
        """Apply a DDPJob whose program is this script at /script/train.py; `pod_spec` is laid over its pods."""
        self.kubectl.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": f"{name}-script", "namespace": self.namespace},
                "data": {"train.py": text},
            }
        )
        mount = {"name": "script", "mountPath": "/script"}
        template = {
            "spec": {
                "containers": [{"name": "trainer", "volumeMounts": [mount]}],
                "volumes": [{"name": "script", "configMap": {"name": f"{name}-script"}}],
                **(pod_spec or {}),
            }
        }
        self.apply(name, template=template, **spec)

    def apply_recipe(self, name: str, text: str, **spec: Any) -> None:
        """The same for a job of the built-in trainer, whose recipe may be in the module `train` with this text."""
        variable = {"name": "PYTHONPATH", "value": "/script"}
        container = {"name": "trainer", "env": [variable], "volumeMounts": [{"name": "script", "mountPath": "/script"}]}
        self.apply_script(name, text, {"containers": [container]}, **spec)

    @property
    def status(self) -> dict[str, Any]:
        """The job's current status."""
        body: Mapping[str, Any] = self.kubectl.json("get", "ddpjob", self.name, "-n", self.namespace)
        return dict(body.get("status") or {})

    def pods(self, attempt: int) -> list[dict[str, Any]]:
        """The pods of an attempt, by rank."""
        selector = f"ddpjob.dev/job={self.name},ddpjob.dev/attempt={attempt}"
        items = self.kubectl.json("get", "pods", "-n", self.namespace, "-l", selector)["items"]
        return sorted(items, key=lambda pod: int(pod["metadata"]["labels"]["ddpjob.dev/rank"]))

    def log(self, attempt: int = 1, rank: int = 0, replacement: int = 0) -> str:
        """What `kubectl logs` shows of a rank, or of the pod that replaced its first one; empty while it has not started."""
        suffix = f"-r{replacement}" if replacement else ""
        try:
            return self.kubectl("logs", f"{self.name}-{attempt}-{rank}{suffix}", "-n", self.namespace)
        except KubectlError:
            return ""

    def step(self, attempt: int = 1, replacement: int = 0) -> int:
        """The step that rank 0 printed last; -1 before its first."""
        steps = re.findall(r"\bstep (\d+)/", self.log(attempt, replacement=replacement))
        return int(steps[-1]) if steps else -1

    def wait_phase(self, *phases: str) -> dict[str, Any]:
        """Wait until the job is in one of these phases; gives its status."""
        return testbed.wait_for(
            f"job {self.name} to be {' or '.join(phases)}",
            lambda: status if (status := self.status).get("phase") in phases else None,
        )

    def wait_end(self) -> dict[str, Any]:
        """Wait until the job has ended; gives its status."""
        return self.wait_phase(*TERMINAL)

    def wait_step(self, step: int, attempt: int = 1) -> None:
        """Wait until rank 0 of the attempt has printed this step."""
        testbed.wait_for(f"step {step} of attempt {attempt} of job {self.name}", lambda: self.step(attempt) >= step)

    def wait_gone(self) -> None:
        """Wait until no pod and no Service of the deleted job is left."""
        asked = ("get", "pods,services", "-n", self.namespace, "-l", f"ddpjob.dev/job={self.name}", "-o", "name")
        testbed.wait_for("pods and Service to be gone", lambda: not self.kubectl(*asked))
        self.name = ""

    def report(self) -> str:
        """Status, pods, Events and logs of the job, for a failed test's report."""
        if not self.name:
            return "no job was applied"
        try:
            pods = self.kubectl("get", "pods", "-n", self.namespace, "-o", "wide")
            events = self.kubectl("get", "events", "-n", self.namespace, "--sort-by=.lastTimestamp")
            attempts = range(1, self.status.get("attempt", 1) + 1)
            logs = [f"--- log of rank 0, attempt {attempt}\n{self.log(attempt)[-3000:]}" for attempt in attempts]
            operator = self.kubectl("logs", f"deployment/{RELEASE}", "-n", SYSTEM_NAMESPACE, "--tail=100")
            return "\n".join([json.dumps(self.status, indent=1), pods, events, *logs, f"--- operator\n{operator}"])
        except KubectlError as gone:
            return str(gone)
