"""`speed`: the plain DDP script and this trainer, side by side in one run, on the same network, images and batch."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import torch
import yaml

from bench.driver import Run
from ddpjob_measure import images, processes, record
from ddpjob_measure.record import positive
from ddpjob_measure.task import Task
from ddpjob_ranks.errors import ConfigError
from ddpjob_trainer import config, recipes
from ddpjob_trainer.recipe_names import short_names

#: The recipes that the plain script can train, since their images come from a folder and are of CIFAR-10's size.
WITH_YARDSTICK = ("resnet18-cifar10", "resnet50-cifar10")
#: CIFAR-10 has no more. An epoch should outlast a measured run: at its end the plain script starts workers.
MAX_IMAGES = 50_000
NOTES = """
plain: the DDP script as tutorials write it (ddpjob_measure/plain_ddp.py); tuned: the same with autocast to bfloat16, channels_last and torch.compile; trainer: this trainer, by profile. Each value is the median over windows; in brackets the extremes.
Parts are milliseconds of a step, the mean over ranks. Exposed communication: from the last gradient to the optimizer, the wait for slower ranks included. Host: what is left of the step; the plain script reads the loss there, the trainer agrees with the other ranks on going on, and logs every tenth step as it does in training.
CPU time of a step is user and system time of all ranks with their DataLoader workers. Other programs of a busy machine change it far less than the time that passes. Threads of the plain script wait actively, OpenMP's default, which counts; those of the trainer sleep. With OMP_WAIT_POLICY=passive all sleep.
Peak memory is that of all ranks: tensors on GPUs; else resident memory with DataLoader workers, pages that processes share counted in each.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--recipes", nargs="+", choices=short_names(), default=["digits", "resnet18-cifar10"])
    parser.add_argument("--ranks", nargs="+", type=positive, default=[1, 2], help="numbers of processes (default: 1 2)")
    parser.add_argument("--profiles", nargs="+", default=["fast", "exact"], help="profiles of the trainer")
    parser.add_argument(
        "--keys", nargs="*", default=[], metavar="KEY=VALUE", help="the trainer also with each of these"
    )
    parser.add_argument("--batch", type=positive, help="global batch (default: 64 on CPUs, the recipe's own on GPUs)")
    parser.add_argument("--steps", type=positive, help="steps in a window (default: 25; 3 for a heavy recipe on CPUs)")
    parser.add_argument("--windows", type=positive, default=3, help="repeats, which give the spread (default: 3)")
    parser.add_argument("--workers", type=int, default=2, help="DataLoader workers of the plain script (default: 2)")
    record.add_options(parser, "trainer", results=None)


def run(given: argparse.Namespace) -> int:
    """Measure and record all runs that did not fail.

    Raises:
        ConfigError: the images are not what a recipe is for, or a batch has more than there are.
    """
    if (given.batch or 0) > MAX_IMAGES:
        raise ConfigError(f"--batch is {given.batch}; expected at most {MAX_IMAGES}, as there are no more images")
    run = Run(given, "Speed of the trainer")
    run.notes += NOTES.strip().splitlines()
    run.facts["plain_dataloader_workers"] = given.workers
    everyone = list(contenders(given))
    num_train = max(num_samples(task) for _, task in everyone)
    if num_train > MAX_IMAGES:
        run.notes.append("Epochs end within a run, which costs the plain script alone: measure fewer steps.")
    plain: dict[tuple[str, int], float] = {}
    with images.provided(given.recipes, num_train=min(MAX_IMAGES, num_train)) as (environ, run.facts["data"]):
        for num_ranks, (name, task) in product(that_fit(given.ranks, run), everyone):
            measured = partial(processes.run, task, world_size=num_ranks, environ=environ)
            if figures := run.result(f"{name}, {num_ranks} ranks", measured):
                key, rate = (task.config["recipe"], num_ranks), figures.images_per_second.median
                if name.startswith("plain "):
                    plain[key] = rate
                run.add({"what": name, **figures.row(), "of plain": rate / plain[key] if key in plain else ""})
    return run.end()


def that_fit(counts: Sequence[int], run: Run) -> list[int]:
    """The numbers of ranks for which this machine has a GPU each, with a note of the others; on CPUs all of them."""
    num_gpus = torch.cuda.device_count()
    fitting = [count for count in counts if count <= num_gpus or num_gpus == 0]
    if left_out := [str(count) for count in counts if count not in fitting]:
        run.notes.append(f"Left out: {', '.join(left_out)} ranks, for which {num_gpus} GPUs are too few.")
    return fitting


def num_samples(task: Task) -> int:
    """Of all its steps."""
    batch_size = recipes.resolve(config.parse_config(task.config)).global_batch_size
    return (task.warmup_steps + task.windows * task.steps + 1) * batch_size


def contenders(given: argparse.Namespace) -> Iterator[tuple[str, Task]]:
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
            options = {"num_workers": given.workers}
            yield f"plain {recipe}", replace(task, program="plain", options=options)
            yield f"tuned {recipe}", replace(task, program="plain", options=options | {"tuned": True})
        for profile in given.profiles:
            for more in ("", *given.keys):
                key, _, value = more.partition("=")
                own = {key: yaml.safe_load(value)} if more else {}
                name = f"trainer {recipe} {profile} {more}".rstrip()
                yield name, replace(task, config={**keys, "profile": profile, **own})
