"""One measured rank: set up what the task names, take its steps, time them."""

import importlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from ddpjob_measure import buckets, images, kernels, usage
from ddpjob_measure.clock import StepClock, mean_parts
from ddpjob_measure.task import PARTS, Figures, Spread, Task
from ddpjob_ranks import contract, distributed
from ddpjob_ranks.distributed import Gang
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.launch import identity
from ddpjob_session.report import Reporter
from ddpjob_session.run import Run
from ddpjob_session.steps import Steps
from ddpjob_trainer import consistency, numerics, recipes, worker
from ddpjob_trainer.config import ResolvedConfig, parse_config
from ddpjob_trainer.data import Batch
from ddpjob_trainer.loop import Batches, is_due
from ddpjob_trainer.numerics import garbage_collector_paused
from ddpjob_trainer.sampling import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A training whose steps can be taken one by one. `take_step` calls its second argument where the step begins."""

    replica: nn.Module
    optimizer: torch.optim.Optimizer
    take_step: Callable[[int, Callable[[], None]], object]
    global_batch_size: int


#: Sets up a training as the task says, on the rank of this place in this gang.
Program = Callable[[Task, identity.Worker, Gang], Measured]


def run(task: Task, place: identity.Worker) -> Figures:
    """The figures of the task on all ranks, which every rank gets.

    Raises:
        ConfigError: the task cannot be measured here.
    """
    config = parse_config(task.config)
    numerics.fix_nccl(config)
    device, store = distributed.rendezvous(place, config.limits, consistency.facts_of_program(config))
    with distributed.join(place, config.limits, device, store) as gang:
        torch.set_num_threads(min(torch.get_num_threads(), recipes.find(config.recipe).max_threads))
        return _measure(task, place, gang)


def program_of(name: str) -> Program:
    """The program with this name, or of this `module:function`.

    Raises:
        ConfigError: there is none.
    """
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function) if function else PROGRAMS[name]
    except (ImportError, AttributeError, KeyError) as error:
        raise ConfigError(
            f"no program {name} ({error}); expected one of {', '.join(PROGRAMS)}, or module:function"
        ) from error
    return found


def _measure(task: Task, place: identity.Worker, gang: Gang) -> Figures:
    measured = program_of(task.program)(task, place, gang)
    extra: Mapping[str, Any] = {}
    if task.program == "buckets":
        extra = buckets.observe(
            measured.replica,
            lambda step: measured.take_step(step, untimed),
            gang,
            num_steps=task.warmup_steps + task.steps,
        )
    resting = garbage_collector_paused() if task.program != "plain" else nullcontext()  # as the trainer's loop has it
    with resting:
        seconds_by_window, cpu_by_window, parts_by_window = _time_windows(task, measured, gang)
    if task.options.get("profile"):
        last = task.warmup_steps + task.windows * task.steps
        extra = {**extra, "kernels": kernels.top(lambda: measured.take_step(last, untimed), gang.device)}
    cpu_by_rank, parts_by_rank = gang.all_gather(cpu_by_window), gang.all_gather(parts_by_window)
    return Figures(
        world_size=gang.world_size,
        device=gang.device.type,
        global_batch_size=measured.global_batch_size,
        images_per_second=Spread.of(measured.global_batch_size / seconds for seconds in seconds_by_window),
        step_seconds=Spread.of(seconds_by_window),
        cpu_seconds=Spread.of(map(sum, zip(*cpu_by_rank, strict=True))),
        part_seconds={
            part: Spread.of(
                sum(windows[window][part] for windows in parts_by_rank) / gang.world_size
                for window in range(task.windows)
            )
            for part in PARTS
        },
        peak_memory_bytes=sum(gang.all_gather(usage.peak_bytes(gang.device))),
        extra=extra,
    )


def _time_windows(
    task: Task, measured: Measured, gang: Gang
) -> tuple[list[float], list[float], list[dict[str, float]]]:
    """Seconds of a step, its CPU time and its parts on this rank, for each window."""
    clock = StepClock(gang.device, measured.replica, measured.optimizer)
    steps = iter(range(task.warmup_steps + task.windows * task.steps))
    for _ in range(task.warmup_steps):
        measured.take_step(next(steps), untimed)
    seconds_by_window, cpu_by_window, parts_by_window = [], [], []
    for _ in range(task.windows):
        clock.take()
        gang.barrier()
        started, used = time.perf_counter(), usage.cpu_seconds()
        for _ in range(task.steps):
            measured.take_step(next(steps), clock.begin_step)
        parts_by_window.append(mean_parts(clock.take()))  # waits for the device
        cpu_by_window.append((usage.cpu_seconds() - used) / task.steps)
        gang.barrier()
        seconds_by_window.append((time.perf_counter() - started) / task.steps)
    clock.close()
    return seconds_by_window, cpu_by_window, parts_by_window


def untimed() -> None:
    """The beginning of a step that no clock times."""


@dataclass(slots=True)
class _Begun:
    """The trainer's batches; asking for one is where a step begins, so the agreement before it is the last step's."""

    batches: Batches
    begin: Callable[[], None] = untimed

    @property
    def sampling(self) -> Sampling:
        return self.batches.sampling

    def batch(self, step: int) -> Batch:
        self.begin()
        return self.batches.batch(step)


class _Uncompiled(nn.Module):
    """The bare model of one rank alone, for the clock's hook: in a compiled model it would be compiled too."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the model gives."""
        return self.model(*inputs, **named)


def _trainer(task: Task, place: identity.Worker, gang: Gang) -> Measured:
    """The trainer itself: its own set-up and loop, without checkpoints and evaluations."""
    os.environ.pop(contract.DDPJOB_CHECKPOINT_DIR, None)
    os.environ.pop(contract.DDPJOB_CHECKPOINT_URI, None)
    report = Reporter(enabled=bool(task.options.get("report")))
    session = Run(gang, report)
    training = worker.set_up(parse_config(task.config), place, session)
    config = training.config
    num_full_steps = len(training.data.train) // config.global_batch_size
    if num_full_steps == 0:
        raise ConfigError(
            f"globalBatchSize is {config.global_batch_size} but the training split holds {len(training.data.train)}"
            " samples; measure with a smaller batch or more data"
        )

    feed = _Begun(training.feed)
    in_ddp = isinstance(training.replica, DistributedDataParallel)
    training = replace(
        training,
        feed=feed,
        replica=training.replica if in_ddp else _Uncompiled(training.replica),
        steps=Steps(session, sys.maxsize),
    )

    def take_step(step: int, begin: Callable[[], None]) -> None:
        feed.begin = begin
        logged = is_due(step + 1, config.log_every_steps)
        training.advance(step % num_full_steps, logged=logged)  # the last step of an epoch is a small one

    return Measured(
        replica=training.replica,
        optimizer=training.state.optimizer,
        take_step=take_step,
        global_batch_size=config.global_batch_size,
    )


def _plain(task: Task, _: identity.Worker, gang: Gang) -> Measured:
    """The plain DDP script on the network, the images and the batch size of the recipe."""
    from ddpjob_measure.plain_ddp import DecodedImages, PlainTraining  # torchvision takes seconds to load

    config = recipes.resolve(parse_config(task.config))
    is_random = config.recipe == images.SYNTHETIC
    plain = PlainTraining(
        network(config),
        random_images(2 * config.global_batch_size) if is_random else DecodedImages(data_dir() / "train"),
        gang,
        global_batch_size=config.global_batch_size,
        num_workers=task.options["num_workers"],
        tuned=task.options.get("tuned", False),
    )

    def take_step(_: int, begin: Callable[[], None]) -> None:
        begin()
        plain.take_step()

    batch_size = config.global_batch_size // gang.world_size * gang.world_size
    return Measured(replica=plain.replica, optimizer=plain.optimizer, take_step=take_step, global_batch_size=batch_size)


def network(config: ResolvedConfig) -> nn.Module:
    """The network of the recipe, for images of so many classes as it is measured with."""
    torch.manual_seed(config.seed)
    num_classes = 1000 if config.recipe == images.SYNTHETIC else images.NUM_CLASSES
    return recipes.find(config.recipe).model(SimpleNamespace(num_classes=num_classes))


def random_images(num: int) -> TensorDataset:
    """Images of ResNet-50's size and their labels, which wait in memory."""
    return TensorDataset(torch.rand(num, 3, 224, 224), torch.randint(1000, (num,)))


def data_dir() -> Path:
    """Where the images are."""
    return Path(os.environ.get(contract.DDPJOB_DATA_DIR) or contract.DATA_DIR)


PROGRAMS: Mapping[str, Program] = {"trainer": _trainer, "plain": _plain, "buckets": _trainer}
