"""`buckets`: DDP's bucket plan for a recipe, and how much of the all-reduce hides behind backward."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ddpjob_measure import images, processes, record
from ddpjob_measure.clock import Mark, now, seconds_between
from ddpjob_measure.task import Figures, Task
from ddpjob_ranks.distributed import Gang
from ddpjob_ranks.errors import ConfigError
from ddpjob_trainer.recipe_names import short_names

#: A stretch of time, as seconds since the step began.
Stretch = tuple[float, float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--recipe", choices=short_names(), default="resnet18-cifar10")
    parser.add_argument("--ranks", type=record.positive, default=2, help="number of processes (default: 2)")
    parser.add_argument("--batch", type=record.positive, default=32, help="global batch (default: 32)")
    parser.add_argument("--steps", type=record.positive, default=6, help="observed steps (default: 6)")
    parser.add_argument("--bucket-cap-mb", type=int, default=0, help="the trainer's bucketCapMb (default: DDP's own)")


def run(given: argparse.Namespace) -> int:
    """Measure and print."""
    keys = {"recipe": given.recipe, "globalBatchSize": given.batch, "bucketCapMb": given.bucket_cap_mb}
    task = Task(program="buckets", config=keys, warmup_steps=1, steps=given.steps, windows=1)
    with images.provided([given.recipe], num_train=given.batch) as (environ, _):
        figures = processes.run(task, world_size=given.ranks, environ=environ)
    print(record.page(f"Buckets of {given.recipe}", record.facts(), [report(figures)]), end="")
    return 0


def report(figures: Figures) -> str:
    """The plan as a table, then what was seen of the overlap."""
    seen = figures.extra
    rows = [
        {"bucket": index, "MiB": bucket["bytes"] / 2**20, "parameters": len(bucket["parameters"])}
        | {"first": bucket["parameters"][0], "last": bucket["parameters"][-1]}
        for index, bucket in enumerate(seen["plan"])
    ]
    total, on_the_way, hidden = sum(row["MiB"] for row in rows), seen["on_the_way_seconds"], seen["hidden_seconds"]
    return f"""{len(rows)} buckets, {total:.1f} MiB of gradients, in the order of their all-reduce

{record.table(rows)}

With {figures.world_size} ranks on {figures.device}, step of {figures.step_seconds.median * 1e3:.1f} ms:
- buckets are on their way for {on_the_way * 1e3:.1f} ms, of which {hidden * 1e3:.1f} ms ({100 * hidden / on_the_way:.0f} %) are hidden behind
  backward (waits for slower ranks count)
- the same buckets reduced alone, with nothing else going on: {seen["alone_seconds"] * 1e3:.1f} ms"""


@dataclass(slots=True)
class _Step:
    """The moments of one backward pass, by bucket."""

    begin: Mark
    ready: list[Mark] = field(default_factory=list)
    done: dict[int, Mark] = field(default_factory=dict)


class _Observer:
    """A communication hook that does what DDP does without one, and takes down when."""

    def __init__(self, replica: DistributedDataParallel, device: torch.device) -> None:
        self.names = {parameter.data_ptr(): name for name, parameter in replica.module.named_parameters()}
        self.device = device
        self.plan: dict[int, dict[str, Any]] = {}
        self.steps: list[_Step] = []
        self.buffers: dict[int, torch.Tensor] = {}

    def reduce(self, _: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average the bucket over all ranks."""
        index, step = bucket.index(), self.steps[-1]
        step.ready.append(now(self.device))
        self.plan[index] = {
            "bytes": bucket.buffer().numel() * bucket.buffer().element_size(),
            "parameters": [self.names[parameter.data_ptr()] for parameter in bucket.parameters()],
        }
        self.buffers[index] = bucket.buffer()

        def arrived(reduced: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            step.done[index] = now(self.device)
            return reduced.value()

        averaged = allreduce_hook(None, bucket)  # type: ignore[arg-type]  # None is the default group
        return averaged.then(arrived)


def observe(replica: nn.Module, take_step: Callable[[int], object], gang: Gang, *, num_steps: int) -> Mapping[str, Any]:
    """The bucket plan and, from the median step, how long buckets were on their way and how much of that was hidden.

    A bucket is on its way from the moment its last gradient is there until its average is: the wait for a slower rank
    counts. Backward's own computation ends when the last bucket is ready; what is on its way until then is hidden.

    Raises:
        ConfigError: the model is not in DDP, or has a communication hook of its own.
    """
    if not isinstance(replica, DistributedDataParallel):
        raise ConfigError(
            f"buckets: the model is in {type(replica).__name__}; only DistributedDataParallel has buckets"
        )
    observer = _Observer(replica, gang.device)
    try:
        replica.register_comm_hook(None, observer.reduce)
    except RuntimeError as error:
        raise ConfigError("buckets: DDP has a communication hook; set gradientCompression to none") from error
    for step in range(num_steps):
        observer.steps.append(_Step(begin=now(gang.device)))
        take_step(step)
    if gang.device.type == "cuda":
        torch.cuda.synchronize(gang.device)
    hidden_by_step = [_on_the_way(step) for step in observer.steps[1:]]  # the first step may still change the plan
    return {
        "plan": [observer.plan[index] for index in sorted(observer.plan)],
        "on_the_way_seconds": median(total for total, _ in hidden_by_step),
        "hidden_seconds": median(hidden for _, hidden in hidden_by_step),
        "alone_seconds": _reduce_alone(list(observer.buffers.values()), gang, num_times=num_steps),
    }


def _on_the_way(step: _Step) -> tuple[float, float]:
    """Seconds with a bucket on its way, and those of them before the last bucket was ready."""
    ready = [seconds_between(step.begin, mark) for mark in step.ready]
    done = [seconds_between(step.begin, step.done[index]) for index in range(len(ready))]
    stretches = list(zip(ready, done, strict=True))
    end = max(ready)
    return covered(stretches), covered([(start, min(stop, end)) for start, stop in stretches])


def covered(stretches: list[Stretch]) -> float:
    """The length of the union of stretches."""
    total, reached = 0.0, float("-inf")
    for start, stop in sorted(stretches):
        total += max(0.0, stop - max(start, reached))
        reached = max(reached, stop)
    return total


def _reduce_alone(buffers: list[torch.Tensor], gang: Gang, *, num_times: int) -> float:
    """Seconds to reduce buffers of the same sizes one after the other, while nothing else runs; the median."""
    copies = [buffer.detach().clone() for buffer in buffers]
    seconds = []
    for _ in range(num_times):
        gang.barrier()
        start = now(gang.device)
        for copy in copies:
            dist.all_reduce(copy)
        end = now(gang.device)
        if gang.device.type == "cuda":
            torch.cuda.synchronize(gang.device)
        seconds.append(seconds_between(start, end))
    return median(seconds)
