"""`bench`: the plain DDP script and this trainer, side by side in one run, on the same network, images and batch."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch

from ddpjob_measure import images, options, processes, record
from ddpjob_measure.options import positive
from ddpjob_measure.series import Series
from ddpjob_measure.surroundings import surroundings
from ddpjob_measure.task import Figures, Task
from ddpjob_ranks.errors import ConfigError
from ddpjob_trainer import config, recipes
from ddpjob_trainer.recipe_names import short_names

#: The recipes that the plain script can train, since their images come from a folder and are of CIFAR-10's size.
WITH_YARDSTICK = ("resnet18-cifar10", "resnet50-cifar10")
#: CIFAR-10 has no more. An epoch should outlast a measured run: at its end the plain script starts workers.
MAX_IMAGES = 50_000
NOTES = (
    (
        "plain: the DDP script as tutorials write it (ddpjob_measure/plain_ddp.py); tuned: the same with autocast to bfloat16,"
        " channels_last and torch.compile; trainer: this trainer, by profile."
        " Each value is the median over windows; in brackets the extremes."
    ),
    (
        "Parts are milliseconds of a step, the mean over ranks. Exposed communication: from the last gradient to the"
        " optimizer, the wait for slower ranks included. Host: what is left of the step; the plain script reads the"
        " loss there, the trainer agrees with the other ranks on going on, and logs every tenth step as it does in training."
    ),
    (
        "CPU time of a step is user and system time of all ranks with their DataLoader workers. Other programs of a busy"
        " machine change it far less than the time that passes. Threads of the plain script wait actively, OpenMP's default,"
        " which counts; those of the trainer sleep. With OMP_WAIT_POLICY=passive all sleep."
    ),
    (
        "Peak memory is that of all ranks: tensors on GPUs; else resident memory with DataLoader workers, pages that"
        " processes share counted in each."
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One row: a program on a recipe in a profile."""

    name: str
    recipe: str
    task: Task


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--recipes", nargs="+", choices=short_names(), default=["digits", "resnet18-cifar10"])
    parser.add_argument("--ranks", nargs="+", type=positive, default=[1, 2], help="numbers of processes (default: 1 2)")
    parser.add_argument("--profiles", nargs="+", default=["fast", "exact"], help="profiles of the trainer")
    parser.add_argument("--batch", type=positive, help="global batch (default: 64 on CPUs, the recipe's own on GPUs)")
    parser.add_argument("--steps", type=positive, help="steps in a window (default: 25; 3 for a heavy recipe on CPUs)")
    parser.add_argument("--windows", type=positive, default=3, help="repeats, which give the spread (default: 3)")
    parser.add_argument("--workers", type=int, default=2, help="DataLoader workers of the plain script (default: 2)")
    options.add_record(parser, "trainer")


def run(given: argparse.Namespace) -> int:
    """Measure, print the table, write the record of all runs that did not fail.

    Raises:
        ConfigError: the images are not what a recipe is for, or a batch has more than there are.
    """
    if (given.batch or 0) > MAX_IMAGES:
        raise ConfigError(f"--batch is {given.batch}; expected at most {MAX_IMAGES}, as there are no more images")
    path, facts, series = options.record_path(given), surroundings(), Series()
    rows: list[tuple[Contender, Figures]] = []
    everyone = list(contenders(given))
    num_train = max(num_samples(contender.task) for contender in everyone)
    if num_train > MAX_IMAGES:
        series.notes.append("Epochs end within a run, which costs the plain script alone: measure fewer steps.")
    facts["plain_dataloader_workers"] = given.workers
    with images.provided(given.recipes, num_train=min(MAX_IMAGES, num_train)) as (environ, facts["data"]):
        for num_ranks, contender in product(series.that_fit(given.ranks), everyone):
            run_it = partial(processes.run, contender.task, world_size=num_ranks, environ=environ)
            if figures := series.result(f"{contender.name}, {num_ranks} ranks", run_it):
                rows.append((contender, figures))
    series.check_has(rows)
    text = record.page("Speed of the trainer", facts, [_table(rows)], [*NOTES, *series.notes])
    print("\n" + text)
    record.save(
        path,
        text,
        facts,
        [record.as_row(figures, what=contender.name, recipe=contender.recipe) for contender, figures in rows],
    )
    return series.exit_code()


def num_samples(task: Task) -> int:
    """Of all its steps."""
    batch_size = recipes.resolve(config.parse_config(task.config)).global_batch_size
    return (task.warmup_steps + task.windows * task.steps + 1) * batch_size


def contenders(given: argparse.Namespace) -> Iterator[Contender]:
    """Who is measured, in the order of the table."""
    for recipe in given.recipes:
        heavy_on_cpu = recipes.find(recipe).heavy and not torch.cuda.is_available()
        batch = given.batch or (64 if not torch.cuda.is_available() else 0)
        keys = {"recipe": recipe, **({"globalBatchSize": batch} if batch else {})}
        task = Task(
            program="trainer",
            config=keys,
            warmup_steps=1 if heavy_on_cpu else 10,
            steps=given.steps or (3 if heavy_on_cpu else 25),
            windows=given.windows,
        )
        if recipe in WITH_YARDSTICK:
            plain = replace(task, program="plain", options={"num_workers": given.workers})
            yield Contender(name=f"plain {recipe}", recipe=recipe, task=plain)
            tuned = replace(plain, options={**plain.options, "tuned": True})
            yield Contender(name=f"tuned {recipe}", recipe=recipe, task=tuned)
        for profile in given.profiles:
            yield Contender(
                name=f"trainer {recipe} {profile}",
                recipe=recipe,
                task=replace(task, config={**keys, "profile": profile}),
            )


def _table(rows: list[tuple[Contender, Figures]]) -> str:
    plain = {(row.recipe, figures.world_size): figures for row, figures in rows if row.name.startswith("plain ")}
    lines = []
    for row, figures in rows:
        yardstick = plain.get((row.recipe, figures.world_size))
        ratio = figures.images_per_second.median / yardstick.images_per_second.median if yardstick else None
        lines.append(
            [
                row.name,
                figures.world_size,
                figures.global_batch_size,
                record.with_spread(figures.images_per_second),
                f"{ratio:.2f}" if ratio else "",
                record.with_spread(figures.step_seconds, 1e3),
                record.with_spread(figures.cpu_seconds, 1e3),
                *record.parts_in_milliseconds(figures),
                f"{figures.peak_memory_bytes / 2**20:,.0f}",
            ]
        )
    header = [
        "what",
        "ranks",
        "global batch",
        "images/s",
        "of plain",
        "ms a step",
        "CPU ms a step",
        *record.PART_TITLES,
        "peak MiB",
    ]
    return record.table(header, lines)
