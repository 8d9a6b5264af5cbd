"""Failures caused on purpose, each with what `kubectl get` and `kubectl describe` must say of it.

A table: how the job is applied, what is then done to it, and how its status must report it. Programs that can do without torch,
which two cores need seconds to import for each rank.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import testbed
from job_on_cluster import JobOnCluster

AnyCluster = testbed.Cluster | testbed.ExternalCluster

BUSY = "import time\ntime.sleep(3600)\n"
RAISES = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    raise ValueError("label 12 is out of range for 10 classes")
dist.barrier()
"""
EATS_MEMORY = """
import os, time
eaten = []
while os.environ["RANK"] == "1":
    eaten.append(b"x" * 2**24)
time.sleep(3600)
"""
SKIPS_A_COLLECTIVE = """
import datetime, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
impatient = dist.new_group(timeout=datetime.timedelta(seconds=8))
dist.all_reduce(torch.ones(1), group=impatient)
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(1), group=impatient)
time.sleep(3600)
"""
#: The working directory of the trainer image is writable for user 65532, and /etc is not.
WRITES_TO_A_DIRECTORY_OF_ROOT = """
import os, time
from pathlib import Path

Path("snapshot.pt").touch()
if os.environ["RANK"] == "1":
    Path("/etc/snapshot.pt").touch()
time.sleep(3600)
"""
#: A pod leaves a silent node after 5 s and gets 5 s to end.
IMPATIENT = {
    "terminationGracePeriodSeconds": 5,
    "tolerations": [
        {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
        for taint in ("not-ready", "unreachable")
    ],
}
SLOW_INIT_CONTAINER = {
    "name": "fetch-data",
    "image": "localhost/ddpjob/trainer:0.1.0",
    "command": ["python", "-c", BUSY],
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
NO_RESTART = {"maxRestarts": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededFailure:
    """A failure to cause, and how the status must report it."""

    name: str
    """Name of the job."""
    reason: str
    """What the column REASON must show."""
    words: Sequence[str]
    """Regular expressions that `kubectl describe` must match, blanks and line ends taken as one blank each."""
    rank: int | None = None
    """The rank that it must name, with its pod and its node."""
    logged: str = ""
    """A regular expression that this rank's log, or rank 0's, must match once the program has ended."""
    within_seconds: float
    """From the fault, or from `kubectl apply` where there is none, to the reason in the column."""
    leads_to: str = ""
    """The state that the job must then reach before it is described; empty if it keeps waiting."""
    program: str = BUSY
    pod_spec: dict[str, Any] | None = None
    spec: dict[str, Any]
    """The job's spec, without its program."""
    before: Callable[[JobOnCluster], None] | None = None
    """A change of the namespace before the job is applied."""
    fault: Callable[[AnyCluster, JobOnCluster], None] | None = None
    """The fault, injected when the job runs."""
    needs_machine: bool = False
    """Whether the fault is injected from outside the cluster."""

    def apply(self, job: JobOnCluster) -> None:
        """Apply the job."""
        if self.before:
            self.before(job)
        spec = {"nodes": 2, **self.spec}
        if "trainer" in spec:
            job.apply(self.name, **spec)
        else:
            job.apply_script(
                self.name, self.program, self.pod_spec, **{"command": ["python", "/script/train.py"], **spec}
            )


def _signal_rank_1(number: signal.Signals) -> Callable[[AnyCluster, JobOnCluster], None]:
    def send(cluster: AnyCluster, job: JobOnCluster) -> None:
        assert isinstance(cluster, testbed.Cluster)
        os.kill(cluster.container_pid(job.namespace, f"{job.name}-1-1", "trainer"), number)

    return send


def _stop_rank_1_in_training(cluster: AnyCluster, job: JobOnCluster) -> None:
    testbed.wait_for(
        "progress in the status", lambda: job.status.get("progress", {}).get("step"), seconds=120, every_seconds=1
    )
    _signal_rank_1(signal.SIGSTOP)(cluster, job)


def _evict_rank_1(cluster: AnyCluster, job: JobOnCluster) -> None:
    pod = f"{job.name}-1-1"
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": job.namespace},
    }
    path = f"/api/v1/namespaces/{job.namespace}/pods/{pod}/eviction"
    cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))


def _delete_rank_1(cluster: AnyCluster, job: JobOnCluster) -> None:
    cluster.kubectl("delete", "pod", f"{job.name}-1-1", "-n", job.namespace, "--wait=false")


def _lose_the_node_of_rank_1(cluster: AnyCluster, job: JobOnCluster) -> None:
    assert isinstance(cluster, testbed.Cluster)
    name = job.pods(1)[1]["spec"]["nodeName"]
    next(node for node in cluster.nodes if node.name == name).kill_kubelet()


def _allow_one_pod(job: JobOnCluster) -> None:
    job.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "team", "namespace": job.namespace},
            "spec": {"hard": {"pods": "1"}},
        }
    )
    testbed.wait_for(
        "the quota to be counted",
        lambda: job.kubectl.json("get", "resourcequota", "team", "-n", job.namespace).get("status", {}).get("hard"),
        seconds=30,
        every_seconds=0.5,
    )


#: All are caused at the same time; each is one test.
FAILURES = (
    SeededFailure(  # rank 0 also fails, and often first, because it loses its peer
        name="exception",
        program=RAISES,
        spec={"restart": NO_RESTART},
        reason="ProgramError",
        rank=1,
        logged=r"Traceback \(most recent call last\):",
        words=["exit code 1 ", "ValueError: label 12 is out of range for 10 classes"],
        within_seconds=180,
        leads_to="Failed",
    ),
    SeededFailure(
        name="exception-under-torchrun",
        program=RAISES,
        spec={"restart": NO_RESTART, "command": ["torchrun", "/script/train.py"]},
        reason="ProgramError",
        rank=1,
        words=["exit code 1 ", "ValueError: label 12 is out of range for 10 classes"],
        within_seconds=180,
        leads_to="Failed",
    ),
    SeededFailure(
        name="exception-in-one-pod",
        program=RAISES,
        spec={"restart": NO_RESTART, "nodes": 1, "processesPerNode": 2, "command": ["torchrun", "/script/train.py"]},
        reason="ProgramError",
        rank=0,
        words=["exit code 1 ", "ValueError: label 12 is out of range for 10 classes"],
        within_seconds=180,
        leads_to="Failed",
    ),
    SeededFailure(
        name="denied-write",
        program=WRITES_TO_A_DIRECTORY_OF_ROOT,
        spec={"restart": NO_RESTART},
        reason="ProgramError",
        rank=1,
        words=[r"Permission denied: '/etc/snapshot.pt' \(hint: the container runs as uid 65532 with a writable root"],
        within_seconds=60,
        leads_to="Failed",
    ),
    SeededFailure(
        name="bad-config",
        spec={"nodes": 1, "trainer": {"recipe": "resnet18-cifar10"}},
        reason="BadConfig",
        rank=0,
        words=["/data"],
        within_seconds=180,
        leads_to="Failed",
    ),
    SeededFailure(
        name="out-of-memory",
        program=EATS_MEMORY,
        spec={"restart": NO_RESTART, "resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "128Mi"}}},
        reason="OutOfMemory",
        rank=1,
        words=["memory", "resources.limits.memory"],
        within_seconds=60,
        leads_to="Failed",
    ),
    SeededFailure(
        name="killed",
        spec={"restart": NO_RESTART},
        fault=_signal_rank_1(signal.SIGKILL),
        needs_machine=True,
        reason="Killed",
        rank=1,
        words=["SIGKILL"],
        within_seconds=20,
        leads_to="Failed",
    ),
    SeededFailure(
        name="no-image",
        spec={"restart": NO_RESTART, "image": "registry.invalid/vision/train:2.1", "deadlines": {"startSeconds": 15}},
        reason="ImagePull",
        rank=0,
        words=["registry.invalid/vision/train:2.1", r"deadlines\.startSeconds"],
        within_seconds=60,
        leads_to="Failed",
    ),
    SeededFailure(
        name="bad-command",  # of several pods that cannot start either could be the first
        spec={"restart": NO_RESTART, "nodes": 1, "command": ["trian", "--epochs=90"]},
        reason="BadCommand",
        rank=0,
        words=[r'"trian"', "not found"],
        within_seconds=60,
        leads_to="Failed",
    ),
    SeededFailure(
        name="collective-timeout",
        program=SKIPS_A_COLLECTIVE,
        spec={"restart": NO_RESTART},
        reason="CollectiveTimeout",
        rank=0,
        words=["8000 ?ms"],
        within_seconds=180,
        leads_to="Failed",
    ),
    SeededFailure(
        name="evicted",
        pod_spec={"terminationGracePeriodSeconds": 5},
        spec={},
        fault=_evict_rank_1,
        reason="Evicted",
        rank=1,
        words=["evict"],
        within_seconds=20,
        leads_to="Running",
    ),
    SeededFailure(
        name="pod-deleted",
        pod_spec={"terminationGracePeriodSeconds": 5},
        spec={},
        fault=_delete_rank_1,
        reason="PodDeleted",
        rank=1,
        words=["deleted"],
        within_seconds=20,
        leads_to="Running",
    ),
    SeededFailure(
        name="no-gpus",
        spec={"gpusPerNode": 4, "command": ["torchrun", "/script/train.py"]},
        reason="Unschedulable",
        words=[r"nvidia\.com/gpu", "0/2 nodes"],
        within_seconds=30,
    ),
    SeededFailure(
        name="no-gpus-in-time",
        spec={
            "gpusPerNode": 4,
            "command": ["torchrun", "/script/train.py"],
            "deadlines": {"queueSeconds": 5},
        },
        reason="QueueDeadline",
        words=[r"deadlines\.queueSeconds", r"nvidia\.com/gpu"],
        within_seconds=30,
        leads_to="Failed",
    ),
    SeededFailure(
        name="too-long",
        spec={"deadlines": {"activeSeconds": 5}},
        reason="ActiveDeadline",
        words=[r"deadlines\.activeSeconds", "5s"],
        within_seconds=60,
        leads_to="Failed",
    ),
    SeededFailure(
        name="no-volume",
        pod_spec={"volumes": [{"name": "script", "configMap": {"name": "forgotten"}}]},
        spec={"restart": NO_RESTART, "deadlines": {"startSeconds": 20}},
        reason="ContainerConfig",
        rank=0,
        words=[r"deadlines\.startSeconds", 'configmap "forgotten" not found'],
        within_seconds=60,
        leads_to="Failed",
    ),
    SeededFailure(
        name="slow-start",
        pod_spec={"initContainers": [SLOW_INIT_CONTAINER]},
        spec={"restart": NO_RESTART, "deadlines": {"startSeconds": 10}},
        needs_machine=True,  # since it takes the image by its name on the test bed
        reason="StartDeadline",
        rank=0,
        words=[r"deadlines\.startSeconds is 10s"],
        within_seconds=60,
        leads_to="Failed",
    ),
    SeededFailure(
        name="no-secret",
        spec={
            "restart": NO_RESTART,
            "deadlines": {"startSeconds": 10},
            "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "token"}}}],
        },
        reason="ContainerConfig",
        rank=0,
        words=['secret "wandb" not found'],
        within_seconds=60,
        leads_to="Failed",
    ),
    SeededFailure(
        name="hung",
        spec={
            "restart": NO_RESTART,
            "trainer": {"recipe": "digits", "epochs": 200},
            "deadlines": {"hangSeconds": 10},
            "template": {"spec": {"terminationGracePeriodSeconds": 5}},
        },
        fault=_stop_rank_1_in_training,
        needs_machine=True,
        reason="Hung",
        rank=0,
        logged=r"Current thread .*\n  File ",
        words=[r"step \d+", r"1\ds", r"deadlines\.hangSeconds"],
        within_seconds=60,
        leads_to="Failed",
    ),
    SeededFailure(
        name="over-quota",
        before=_allow_one_pod,
        spec={},
        reason="QuotaExceeded",
        words=["quota team", "1 of 1 pods used"],
        within_seconds=30,
    ),
)

#: Alone, since it takes a node from everybody.
NODE_LOSS = SeededFailure(
    name="node-lost",
    pod_spec=IMPATIENT,
    spec={},
    fault=_lose_the_node_of_rank_1,
    needs_machine=True,
    reason="NodeLost",
    rank=1,
    words=["stopped answering"],
    within_seconds=60,
    leads_to="Running",
)
