"""Failures caused on purpose, each with what `kubectl get` and `kubectl describe` must show of it.

A table: how the job is applied, what is then done to it, and how its status must report it. Killed processes, deleted or
evicted pods and lost nodes are in `chaos/matrix.py`. Programs do without torch where they can: two cores need seconds to import it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import testbed
from support.job_on_cluster import JobOnCluster

AnyCluster = testbed.Cluster | testbed.ExternalCluster

BUSY = "import time\ntime.sleep(3600)\n"
#: It ends as Python does after an exception, but leaves torch's threads to the kernel: with a process group that is still there they
#: can end the process by SIGABRT (one CI run in many), which would be another cause.
RAISES = """
import os, traceback
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    try:
        raise ValueError("label 12 is out of range for 10 classes")
    except ValueError:
        traceback.print_exc()
        os._exit(1)
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
SLOW_INIT_CONTAINER = {
    "name": "fetch-data",
    "image": "localhost/ddpjob/trainer:0.1.0",
    "command": ["python", "-c", BUSY],
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
SCRIPT = ["python", "/script/train.py"]
TORCHRUN = ["torchrun", "/script/train.py"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededFailure:
    """A failure to cause, and how the status must report it."""

    name: str
    """Name of the job."""
    reason: str
    """What the column REASON must show."""
    patterns: Sequence[str]
    """Regular expressions that `kubectl describe` must match, blanks and line ends taken as one blank each."""
    rank: int | None = None
    """The rank that it must name, with its pod and its node."""
    logged: str = ""
    """A regular expression that this rank's log, or rank 0's, must match once the program has ended."""
    program: str = BUSY
    pod_spec: dict[str, Any] | None = None
    spec: dict[str, Any] = field(default_factory=dict)
    """The job's spec, if it is not two nodes, no restart and the program."""
    fault: Callable[[AnyCluster, JobOnCluster], None] | None = None
    """The fault, injected when the job runs."""
    needs_machine: bool = False
    """Whether the fault is injected from outside the cluster."""

    def apply(self, job: JobOnCluster) -> None:
        """Apply the job."""
        spec = {"nodes": 2, "restart": {"maxRestarts": 0}, **self.spec}
        if "trainer" in spec:
            job.apply(self.name, **spec)
        else:
            job.apply_script(self.name, self.program, self.pod_spec, **{"command": SCRIPT, **spec})


def _stop_rank_1_in_training(cluster: AnyCluster, job: JobOnCluster) -> None:
    assert isinstance(cluster, testbed.Cluster)
    testbed.wait_for("progress in the status", lambda: job.status.get("progress", {}).get("step"))
    os.kill(cluster.container_pid(job.namespace, f"{job.name}-1-1", "trainer"), signal.SIGSTOP)


OUT_OF_RANGE = ["exit code 1 ", "ValueError: label 12 is out of range for 10 classes"]

#: All are caused at the same time; each is one test.
FAILURES = (
    SeededFailure(  # rank 0 also fails, and often first, because it loses its peer
        name="exception",
        program=RAISES,
        reason="ProgramError",
        rank=1,
        logged=r"Traceback \(most recent call last\):",
        patterns=OUT_OF_RANGE,
    ),
    SeededFailure(
        name="exception-under-torchrun",
        program=RAISES,
        spec={"command": TORCHRUN},
        reason="ProgramError",
        rank=1,
        patterns=OUT_OF_RANGE,
    ),
    SeededFailure(
        name="exception-in-one-pod",
        program=RAISES,
        spec={"nodes": 1, "processesPerNode": 2, "command": TORCHRUN},
        reason="ProgramError",
        rank=0,
        patterns=OUT_OF_RANGE,
    ),
    SeededFailure(
        name="denied-write",
        program=WRITES_TO_A_DIRECTORY_OF_ROOT,
        reason="ProgramError",
        rank=1,
        patterns=[
            r"Permission denied: '/etc/snapshot.pt' \(hint: the container runs as uid 65532 with a writable root"
        ],
    ),
    SeededFailure(
        name="bad-config",
        spec={"nodes": 1, "trainer": {"recipe": "resnet18-cifar10"}},
        reason="BadConfig",
        rank=0,
        patterns=["/data"],
    ),
    SeededFailure(
        name="out-of-memory",
        program=EATS_MEMORY,
        spec={"resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "128Mi"}}},
        reason="OutOfMemory",
        rank=1,
        patterns=["memory", "resources.limits.memory"],
    ),
    SeededFailure(
        name="no-image",
        spec={"image": "registry.invalid/vision/train:2.1", "deadlines": {"startSeconds": 60}},
        reason="ImagePull",
        rank=0,
        patterns=["registry.invalid/vision/train:2.1", r"deadlines\.startSeconds"],
    ),
    SeededFailure(
        name="bad-command",  # of several pods that cannot start either could be the first
        spec={"nodes": 1, "command": ["trian", "--epochs=90"]},
        reason="BadCommand",
        rank=0,
        patterns=[r'"trian"', "not found"],
    ),
    SeededFailure(
        name="collective-timeout",
        program=SKIPS_A_COLLECTIVE,
        reason="CollectiveTimeout",
        rank=0,
        patterns=["8000 ?ms"],
    ),
    SeededFailure(
        name="no-gpus-in-time",
        spec={"gpusPerNode": 4, "command": TORCHRUN, "deadlines": {"queueSeconds": 30}},
        reason="QueueDeadline",
        patterns=[r"deadlines\.queueSeconds", r"nvidia\.com/gpu", "0/2 nodes"],
    ),
    SeededFailure(
        name="no-volume",
        pod_spec={"volumes": [{"name": "script", "configMap": {"name": "forgotten"}}]},
        spec={"deadlines": {"startSeconds": 60}},
        reason="ContainerConfig",
        rank=0,
        patterns=[r"deadlines\.startSeconds", 'configmap "forgotten" not found'],
    ),
    SeededFailure(
        name="slow-start",
        pod_spec={"initContainers": [SLOW_INIT_CONTAINER]},
        spec={"deadlines": {"startSeconds": 10}},
        needs_machine=True,  # since it takes the image by its name on the test bed
        reason="StartDeadline",
        rank=0,
        patterns=[r"deadlines\.startSeconds is 10s"],
    ),
    SeededFailure(
        name="no-secret",
        spec={
            "deadlines": {"startSeconds": 60},
            "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "token"}}}],
        },
        reason="ContainerConfig",
        rank=0,
        patterns=['secret "wandb" not found'],
    ),
    SeededFailure(
        name="hung",
        spec={
            "trainer": {"recipe": "digits", "epochs": 10000},
            "deadlines": {"hangSeconds": 40},
            "template": {"spec": {"terminationGracePeriodSeconds": 5}},
        },
        fault=_stop_rank_1_in_training,
        needs_machine=True,
        reason="Hung",
        rank=0,
        logged=r"ddpjob stacks: SIGTERM received\nthread MainThread\n  File ",
        patterns=[r"step \d+", r"\d\ds", r"deadlines\.hangSeconds"],
    ),
)
