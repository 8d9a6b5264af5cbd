"""`compare`: DataParallel against DistributedDataParallel, options of the latter, and what SyncBatchNorm costs."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import torch
from bench.driver import Run
from bench.trainer import sizes
from torch import nn

from ddpjob_measure import images, processes
from ddpjob_measure.measuring import Measured, data_dir
from ddpjob_measure.record import positive
from ddpjob_measure.task import Task
from ddpjob_ranks.distributed import Gang
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.launch import identity
from ddpjob_trainer import loading, recipes
from ddpjob_trainer.config import parse_config
from ddpjob_trainer.parallel import replicate
from ddpjob_trainer.sampling import share

SUBJECTS = ("data-parallel", "ddp-options", "sync-batch-norm")
#: Of DDP: keys of the trainer's configuration, and what the trainer leaves as it is or sets for good (`parallel`).
DDP_OPTIONS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, bool]]] = {
    "as the trainer has it": ({}, {}),
    "gradient_as_bucket_view=False": ({}, {"gradient_as_bucket_view": False}),
    "forward_sync_buffers=True": ({}, {"forward_sync_buffers": True}),
    "static_graph=True": ({}, {"static_graph": True}),
    "batched_grad_copy=True": ({}, {"batched_grad_copy": True}),
    "bucketCapMb 1": ({"bucketCapMb": 1}, {}),
    "bucketCapMb 100": ({"bucketCapMb": 100}, {}),
    "gradientCompression bf16": ({"gradientCompression": "bf16"}, {}),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("subject", choices=SUBJECTS)
    sizes.add_options(parser, "compare", recipe=None, steps=20, batch=256)
    default = torch.cuda.device_count() or 2
    parser.add_argument("--ranks", type=positive, default=default, help="default: the GPUs, or 2")


def run(given: argparse.Namespace) -> int:
    """Measure and print.

    Raises:
        ConfigError: this machine cannot show the difference.
    """
    num_gpus = torch.cuda.device_count()
    if given.subject == "sync-batch-norm" and num_gpus < max(2, given.ranks):
        raise ConfigError(
            f"compare sync-batch-norm: found {num_gpus} GPUs; PyTorch has SyncBatchNorm for GPUs alone, and"
            f" it costs something with several ranks only: run it on a machine with at least {max(2, given.ranks)}"
        )
    if given.subject == "ddp-options" and given.ranks < 2:
        raise ConfigError(f"compare ddp-options: --ranks is {given.ranks}; options of DDP show with two ranks or more")
    # The digits' gradients fit into one bucket of any size.
    given.recipe = given.recipe or ("resnet18-cifar10" if given.subject == "ddp-options" else images.DIGITS)
    run = Run(given, f"Comparison: {given.subject}", recipe=given.recipe)
    if given.subject == "data-parallel" and num_gpus < 2:
        run.notes.append(
            f"This machine has {num_gpus} GPUs. With fewer than two, DataParallel calls the bare network, so the first line is"
            " that of one process without any parallelism."
        )
    first = 0.0
    with images.provided([given.recipe], num_train=given.batch) as (environ, _):
        for name, task, num_ranks in cases(given):
            figures = processes.run(task, world_size=num_ranks, environ=environ)
            first = first or figures.step_seconds.median
            run.add({"what": name, **figures.row(), "times the first": figures.step_seconds.median / first})
    return run.end()


def cases(given: argparse.Namespace) -> list[tuple[str, Task, int]]:
    """Name, task and number of ranks of each line, the one to compare with first."""

    def task(program: str, keys: Mapping[str, Any], **options: Any) -> Task:
        config = {"recipe": given.recipe, "globalBatchSize": given.batch, **keys}
        sizes = {"warmup_steps": 5, "steps": given.steps, "windows": given.windows}
        return Task(program=program, config=config, options=options, **sizes)

    def wrapped(wrapper: str, keys: Mapping[str, Any], **ddp: bool) -> Task:
        return task("bench.trainer.compare:on_one_batch", keys, wrapper=wrapper, ddp=ddp)

    if given.subject == "sync-batch-norm":
        return [
            (f"syncBatchNorm {str(on).lower()}", task("trainer", {"syncBatchNorm": on}), given.ranks)
            for on in (False, True)
        ]
    if given.subject == "ddp-options":
        return [(name, wrapped("ddp", keys, **ddp), given.ranks) for name, (keys, ddp) in DDP_OPTIONS.items()]
    return [
        ("DataParallel", wrapped("data-parallel", {}), 1),
        ("DDP", wrapped("ddp", {}), 1),
        ("DDP", wrapped("ddp", {}), given.ranks),
    ]


def on_one_batch(task: Task, _: identity.Worker, gang: Gang) -> Measured:
    """The recipe's network on one batch, repeatedly, in the wrapper that `options.wrapper` names.

    DataParallel is one process that uses all GPUs it sees, or just the network if it sees none.
    """
    config = recipes.resolve(parse_config(task.config))
    torch.manual_seed(config.seed)
    recipe = recipes.find(config.recipe)
    data = loading.prepare(recipe.data(data_dir(), config), config, gang.device)
    network = recipe.model(data).to(gang.device)
    if task.options["wrapper"] == "data-parallel":
        model: nn.Module = nn.DataParallel(network)
    else:
        model = replicate(network, config, gang, **task.options["ddp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    part = share(config.global_batch_size, rank=gang.rank, world_size=gang.world_size)
    images, labels = next(iter(data.train.batches(part, config.global_batch_size)))

    def take_step(_: int, begin: Callable[[], None]) -> None:
        begin()
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(images), labels))
        optimizer.step()

    return Measured(replica=model, optimizer=optimizer, take_step=take_step, global_batch_size=config.global_batch_size)
