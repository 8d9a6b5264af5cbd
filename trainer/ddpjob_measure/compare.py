"""`compare`: DataParallel against DistributedDataParallel, options of the latter, and what SyncBatchNorm costs."""

import argparse
from collections.abc import Mapping
from typing import Any

import torch

from ddpjob_measure import images, processes, record
from ddpjob_measure.options import positive
from ddpjob_measure.surroundings import headline, surroundings
from ddpjob_measure.task import Figures, Task
from ddpjob_ranks.errors import ConfigError
from ddpjob_trainer.recipe_names import short_names

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
    parser.add_argument("--recipe", choices=short_names(), help="default: digits; resnet18-cifar10 for DDP's options")
    parser.add_argument(
        "--ranks", type=positive, default=torch.cuda.device_count() or 2, help="default: the GPUs, or 2"
    )
    parser.add_argument("--batch", type=positive, default=256, help="global batch (default: 256)")
    parser.add_argument("--steps", type=positive, default=20, help="steps in a window (default: 20)")
    parser.add_argument("--windows", type=positive, default=3, help="repeats, which give the spread (default: 3)")


def run(given: argparse.Namespace) -> int:
    """Measure and print.

    Raises:
        ConfigError: this machine cannot show the difference.
    """
    if given.subject == "sync-batch-norm" and torch.cuda.device_count() < max(2, given.ranks):
        raise ConfigError(
            f"compare sync-batch-norm: found {torch.cuda.device_count()} GPUs; PyTorch has SyncBatchNorm for GPUs alone, and"
            f" it costs something with several ranks only: run it on a machine with at least {max(2, given.ranks)}"
        )
    if given.subject == "ddp-options" and given.ranks < 2:
        raise ConfigError(f"compare ddp-options: --ranks is {given.ranks}; options of DDP show with two ranks or more")
    if given.recipe is None:  # the digits' gradients fit into one bucket of any size
        given.recipe = "resnet18-cifar10" if given.subject == "ddp-options" else images.DIGITS
    with images.provided([given.recipe], num_train=given.batch) as (environ, _):
        measured = [
            (name, processes.run(task, world_size=num_ranks, environ=environ)) for name, task, num_ranks in cases(given)
        ]
    print(headline(surroundings()))
    print("\n" + table(measured))
    if given.subject == "data-parallel" and torch.cuda.device_count() < 2:
        print(
            f"\nThis machine has {torch.cuda.device_count()} GPUs. DataParallel spreads a batch over the GPUs of one process;"
            " with fewer than two it calls the bare network, so the first line is that of one process without any"
            " parallelism. What DataParallel itself costs shows only with two GPUs or more."
        )
    return 0


def cases(given: argparse.Namespace) -> list[tuple[str, Task, int]]:
    """Name, task and number of ranks of each line, the one to compare with first."""
    keys: dict[str, Any] = {"recipe": given.recipe, "globalBatchSize": given.batch}
    sizes: dict[str, Any] = {"warmup_steps": 5, "steps": given.steps, "windows": given.windows}
    if given.subject == "sync-batch-norm":
        return [
            (
                f"syncBatchNorm {str(on).lower()}",
                Task(program="trainer", config={**keys, "syncBatchNorm": on}, **sizes),
                given.ranks,
            )
            for on in (False, True)
        ]
    if given.subject == "ddp-options":
        return [
            (
                name,
                Task(
                    program="wrapped", config={**keys, **changed}, options={"wrapper": "ddp", "ddp": options}, **sizes
                ),
                given.ranks,
            )
            for name, (changed, options) in DDP_OPTIONS.items()
        ]
    wrapped = [("DataParallel", "data-parallel", 1), ("DDP", "ddp", 1), ("DDP", "ddp", given.ranks)]
    return [
        (name, Task(program="wrapped", config=keys, options={"wrapper": wrapper}, **sizes), num_ranks)
        for name, wrapper, num_ranks in wrapped
    ]


def table(measured: list[tuple[str, Figures]]) -> str:
    """Markdown; times as multiples of the first line's."""
    first = measured[0][1].step_seconds.median
    header = ["what", "processes", "global batch", "images/s", "ms a step", "times the first", *record.PART_TITLES]
    return record.table(
        header,
        [
            [
                name,
                figures.world_size,
                figures.global_batch_size,
                record.with_spread(figures.images_per_second),
                record.with_spread(figures.step_seconds, 1e3),
                f"{figures.step_seconds.median / first:.2f}",
                *record.parts_in_milliseconds(figures),
            ]
            for name, figures in measured
        ],
    )
