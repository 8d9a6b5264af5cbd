"""Measured ranks as DDPJobs on a cluster. The trainer image does not contain `ddpjob_measure`, so its modules travel with each job."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

import ddpjob_measure
from ddpjob.client import Client, ClientError
from ddpjob_measure.task import Figures, MeasureError, Task
from ddpjob_ranks.errors import ConfigError

#: Longest life of one job.
JOB_SECONDS = 1800.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a command that can run on a cluster."""
    cluster = parser.add_argument_group("on a cluster with the operator, as DDPJobs")
    cluster.add_argument("--kubeconfig", help="the cluster; without it processes of this machine are measured")
    cluster.add_argument("--namespace", default="default")
    about = "a DDPJob with image, resources, volumes and processesPerNode; the rest is filled in"
    cluster.add_argument("--template", type=Path, help=about)


def template_of(given: argparse.Namespace) -> Mapping[str, Any]:
    """The DDPJob that the options name.

    Raises:
        ConfigError: the template is missing or is no DDPJob.
    """
    if given.template is None:
        raise ConfigError("--kubeconfig needs --template, a file with one DDPJob that gives image and resources")
    template = yaml.safe_load(given.template.read_text(encoding="utf-8"))
    if not isinstance(template, dict) or template.get("kind") != "DDPJob":
        raise ConfigError(f"--template {given.template}: expected one document of kind DDPJob")
    return template


def run(given: argparse.Namespace, template: Mapping[str, Any], task: Task, world_size: int) -> Figures:
    """Submit a job for the task, wait for its end, read the figures from rank 0's log, delete the job.

    Raises:
        MeasureError: the job failed, or did not end in time.
    """
    body, folder = manifest(template, task, world_size), Path(ddpjob_measure.__file__).parent
    files = {f"{folder.name}/{path.name}": path.read_bytes() for path in sorted(folder.glob("*.py"))}
    try:
        with Client(kubeconfig=given.kubeconfig, namespace=given.namespace) as client:
            name = client.submit(body, files=files).name
            try:
                job = client.wait(name, timeout=JOB_SECONDS)
                log = "\n".join(line.text for line in client.logs(name, ranks=[0]))
            finally:
                client.delete(name)
    except ClientError as error:
        raise MeasureError(f"job {body['metadata']['name']}: {error}") from error
    if job.phase != "Succeeded":
        raise MeasureError(f"job {name}: {job.status.reason}: {job.status.message}\n{log[-2000:]}")
    return Figures.from_output(log)


def manifest(template: Mapping[str, Any], task: Task, world_size: int) -> dict[str, Any]:
    """The DDPJob that runs the task on `world_size` ranks, otherwise as in the template.

    Raises:
        ConfigError: the ranks do not fill nodes evenly.
    """
    spec = {key: value for key, value in template["spec"].items() if key != "trainer"}
    per_node = min(world_size, spec.get("processesPerNode", spec.get("gpusPerNode", 1)))
    if world_size % per_node:
        raise ConfigError(f"{world_size} ranks do not fill nodes of {per_node}: leave {world_size} out of --processes")
    spec |= {"nodes": world_size // per_node, "processesPerNode": per_node}
    spec |= {"gpusPerNode": per_node} if "gpusPerNode" in spec else {}
    launcher = "python" if per_node == 1 else "torchrun"  # several ranks need a launcher
    spec["command"] = [launcher, "-m", "ddpjob_measure.rank", "--task", task.to_json()]
    return {**template, "metadata": {"name": f"{template['metadata']['name']}-{world_size}"}, "spec": spec}
