"""Measured ranks as DDPJobs on a cluster, driven by kubectl.

The trainer image does not contain this package, so its modules travel in a ConfigMap next to each job.
"""

import argparse
import copy
import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ddpjob_measure.task import Figures, MeasureError, Task
from ddpjob_ranks.errors import ConfigError

POLL_SECONDS = 2.0
#: Where pods find this package, by way of PYTHONPATH.
CODE_FOLDER = "/ddpjob-measure"
KUBECTL_SECONDS = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a command that can run on a cluster."""
    cluster = parser.add_argument_group("on a cluster with the operator, as DDPJobs")
    cluster.add_argument(
        "--kubeconfig", type=Path, help="the cluster; without it processes of this machine are measured"
    )
    cluster.add_argument("--namespace", default="default")
    cluster.add_argument(
        "--template", type=Path, help="a DDPJob with image, resources and volumes; the rest is filled in"
    )
    cluster.add_argument(
        "--processes-per-node", type=int, default=1, help="largest number of ranks in a pod (default: 1)"
    )
    cluster.add_argument("--kubectl", default="kubectl", help="the program")
    cluster.add_argument("--job-seconds", type=float, default=1800, help="longest life of one job (default: 1800)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where jobs are applied, and from which template."""

    kubeconfig: Path
    namespace: str
    template: dict[str, Any]
    processes_per_node: int = 1
    kubectl: str = "kubectl"
    job_seconds: float = 1800.0

    @classmethod
    def of(cls, given: argparse.Namespace) -> "Cluster":
        """The cluster that the options name.

        Raises:
            ConfigError: the template is missing or is no DDPJob.
        """
        if given.template is None:
            raise ConfigError("--kubeconfig needs --template, a file with one DDPJob that gives image and resources")
        template = yaml.safe_load(given.template.read_text(encoding="utf-8"))
        if not isinstance(template, dict) or template.get("kind") != "DDPJob":
            raise ConfigError(f"--template {given.template}: expected one document of kind DDPJob")
        return cls(
            kubeconfig=given.kubeconfig,
            namespace=given.namespace,
            template=template,
            processes_per_node=given.processes_per_node,
            kubectl=given.kubectl,
            job_seconds=given.job_seconds,
        )

    def run(self, task: Task, world_size: int) -> Figures:
        """Apply a job for the task, wait for its end, read the figures from rank 0's log, delete the job.

        Raises:
            MeasureError: the job failed, or did not end in time.
        """
        job = manifest(self.template, task, world_size=world_size, processes_per_node=self.processes_per_node)
        name = job["metadata"]["name"]
        self._kubectl("delete", "ddpjob", name, "--ignore-not-found")
        items = {"apiVersion": "v1", "kind": "List", "items": [code(name), job]}
        self._kubectl("apply", "-f", "-", text=json.dumps(items))
        try:
            status = self._end_of(name)
            log = self._kubectl("logs", f"{name}-{status.get('attempt', 1)}-0")
            if status["phase"] != "Succeeded":
                raise MeasureError(f"job {name}: {status.get('reason')}: {status.get('message')}\n{log[-2000:]}")
            return Figures.from_output(log)
        finally:
            self._kubectl("delete", f"configmap/{name}", f"ddpjob/{name}", "--wait=false")

    def _end_of(self, name: str) -> dict[str, Any]:
        deadline = time.monotonic() + self.job_seconds
        status: dict[str, Any] = {}
        while status.get("phase") not in ("Succeeded", "Failed"):
            if time.monotonic() > deadline:
                raise MeasureError(f"job {name} has not ended within {self.job_seconds:g} s; its status: {status}")
            time.sleep(POLL_SECONDS)
            status = json.loads(self._kubectl("get", "ddpjob", name, "-o", "json")).get("status") or {}
        return status

    def _kubectl(self, *arguments: str, text: str | None = None) -> str:
        command = [self.kubectl, "--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace, *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=KUBECTL_SECONDS, check=False)
        if done.returncode != 0:
            raise MeasureError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout


def manifest(template: dict[str, Any], task: Task, *, world_size: int, processes_per_node: int) -> dict[str, Any]:
    """The DDPJob that runs the task on `world_size` ranks with the modules in `code`, otherwise as in the template.

    Raises:
        ConfigError: the ranks do not fill nodes evenly.
    """
    per_node = min(world_size, processes_per_node)
    if world_size % per_node:
        raise ConfigError(
            f"{world_size} ranks do not fill nodes of {per_node}; set --processes-per-node to a divisor or leave"
            f" {world_size} out of --processes"
        )
    job = copy.deepcopy(template)
    job["metadata"]["name"] = f"{template['metadata']['name']}-{world_size}"
    spec = job["spec"]
    spec.pop("trainer", None)
    spec["nodes"] = world_size // per_node
    spec["processesPerNode"] = per_node
    if "gpusPerNode" in spec:
        spec["gpusPerNode"] = per_node
    launcher = ["python"] if per_node == 1 else ["torchrun"]  # several ranks need a launcher
    spec["command"] = [*launcher, "-m", "ddpjob_measure.rank", "--task", task.to_json()]
    _mount_code(spec, config_map=job["metadata"]["name"])
    return job


def code(name: str) -> dict[str, Any]:
    """A ConfigMap with the modules of this package."""
    modules = {path.name: path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": modules}


def _mount_code(spec: dict[str, Any], *, config_map: str) -> None:
    spec["env"] = [*spec.get("env", []), {"name": "PYTHONPATH", "value": CODE_FOLDER}]
    pod = spec.setdefault("template", {}).setdefault("spec", {})
    pod["volumes"] = [*pod.get("volumes", []), {"name": "ddpjob-measure", "configMap": {"name": config_map}}]
    containers = pod.setdefault("containers", [])
    trainer = next((container for container in containers if container["name"] == "trainer"), None)
    if trainer is None:
        trainer = {"name": "trainer"}
        containers.append(trainer)
    mount = {"name": "ddpjob-measure", "mountPath": f"{CODE_FOLDER}/ddpjob_measure", "readOnly": True}
    trainer["volumeMounts"] = [*trainer.get("volumeMounts", []), mount]
