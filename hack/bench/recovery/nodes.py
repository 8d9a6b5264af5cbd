"""How long a job on two real nodes needs from SIGKILL of a rank or of its pod's main process to the next step that is done.

- `tier 1`: a rank is killed, and all ranks start again in their pods.
- `tier 2`: the main process of a pod is killed, and a new pod replaces it: scheduling and the start of a container are included.
- `tier 3`: the same without `restart.inPlace`, whose gang starts again, without a checkpoint.

Trials are interleaved, so that other load on the machine meets all of them. `make bench-recovery-nodes` prints a table. With
`--program resnet18` the state is 90 MB; otherwise the job trains the digits.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import testbed
from bench.recovery.training import Trial, compare, parser_of
from ddpjob_operator.core.times import epoch_seconds
from support.helm_release import install, load_images
from support.job_on_cluster import JobOnCluster, fresh_namespace
from testbed.kubectl import KubectlError

WHERE = "The {program} on two real nodes of one machine; `hack/bench/recovery/nodes.py` says what each row is."


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A job, and what is done to it."""

    restart: Mapping[str, Any]
    kills_rank: bool = False
    """Whether the rank alone is killed, and not the main process of its pod."""
    is_new_attempt: bool = False
    """Whether the next step is that of another attempt, without a checkpoint."""


WAYS = {
    "tier 1": Way(restart={"inPlace": True}, kills_rank=True),
    "tier 2": Way(restart={"inPlace": True}),
    "tier 3": Way(restart={}, is_new_attempt=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What the job trains."""

    trainer: Mapping[str, Any]
    script: str = ""
    """A module `train` for its recipe."""
    kill_after_step: int


RESNET18 = """
from dataclasses import replace

import torch

from ddpjob_recipes.resnet_cifar10 import CIFAR10, resnet18_cifar10
from ddpjob_trainer.data import ImageData, Split


def random_images(folder, config):
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (640, 3, 32, 32), dtype=torch.uint8, generator=draw)
    labels = torch.randint(0, 10, (640,), generator=draw)
    split = Split(images_NCHW=images, labels_N=labels, preparation=CIFAR10)
    return ImageData(train=split, test=split, num_classes=10)


resnet18 = replace(resnet18_cifar10, data=random_images)
"""
ENDLESS = {"epochs": 100_000, "logEverySteps": 1}
PROGRAMS = {
    "digits": Program(trainer={"recipe": "digits", **ENDLESS}, kill_after_step=200),
    "resnet18": Program(
        trainer={"recipe": "train:resnet18", "globalBatchSize": 32, "evaluateEveryEpochs": 0, **ENDLESS},
        script=RESNET18,
        kill_after_step=10,
    ),
}
DEADLINE_SECONDS = 300.0
_numbers = itertools.count(1)
_STARTED = re.compile(r"^(?P<time>\S+) epoch \d+ step \d+/", re.MULTILINE)
_RESUMED = re.compile(
    r"resumed from step (?P<resumed>\d+) in memory[\s\S]*?^(?P<time>\S+) epoch \d+ step", re.MULTILINE
)


def trial(cluster: testbed.Cluster, namespace: str, way: Way, program: Program) -> Trial:
    """Apply a job, kill its rank 1 or the main process of that pod, and wait for the next step."""
    job = JobOnCluster(cluster.kubectl, namespace)
    name = f"job-{next(_numbers)}"
    job.apply_recipe(name, program.script, nodes=2, trainer=program.trainer, restart=way.restart)
    job.wait_step(program.kill_after_step)
    pid = cluster.container_pid(namespace, f"{name}-1-1", "trainer")
    before = _log(job, f"{name}-1-0")
    killed_at = time.time()
    os.kill(testbed.child_named(pid, "rank 1") if way.kills_rank else pid, signal.SIGKILL)
    rank_0, goes_on = (f"{name}-2-0", _STARTED) if way.is_new_attempt else (f"{name}-1-0", _RESUMED)

    def next_step() -> re.Match[str] | None:
        try:
            return goes_on.search(_log(job, rank_0))
        except KubectlError:  # the pod has not started
            return None

    # Logs carry the time of each line, so that nobody has to look often, which would take CPU time from the ranks.
    found = testbed.wait_for("a step after the kill", next_step, seconds=DEADLINE_SECONDS, every_seconds=1)
    done, resumed = (before, 0) if way.is_new_attempt else (found.string[: found.start()], int(found["resumed"]))
    cluster.kubectl("delete", "ddpjob", name, f"--namespace={namespace}")
    without_times = re.sub(r"^\S+ ", "", done, flags=re.MULTILINE)
    return Trial.of(epoch_seconds(found["time"]) - killed_at, without_times, resumed)


def _log(job: JobOnCluster, pod: str) -> str:
    return job.kubectl("logs", pod, "--container=trainer", "--timestamps", f"--namespace={job.namespace}")


def main() -> int:
    """Bring up two nodes with the operator and compare on them; returns the exit code."""
    parser = parser_of("bench.recovery.nodes", __doc__, "recovery-nodes", WAYS)
    parser.add_argument("--program", choices=PROGRAMS, default="digits", help="(default: %(default)s)")
    given = parser.parse_args()
    with testbed.Cluster(nodes=2) as cluster:
        install(cluster, load_images(cluster))
        with fresh_namespace(cluster.kubectl) as namespace:
            where = WHERE.format(program=given.program)
            return compare(given, where, lambda way: trial(cluster, namespace, WAYS[way], PROGRAMS[given.program]))


if __name__ == "__main__":
    sys.exit(main())
