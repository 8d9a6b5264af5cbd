"""`scale`: the same training on more and more processes, at a fixed global batch (strong) and a fixed share (weak)."""

import argparse
from functools import partial

from bench.driver import Run
from bench.trainer.speed import that_fit
from ddpjob_measure import images, processes, record
from ddpjob_measure.record import positive
from ddpjob_measure.task import Figures, Task
from ddpjob_trainer.recipe_names import short_names

MODES = ("strong", "weak")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--recipe", choices=short_names(), default="digits")
    parser.add_argument("--processes", nargs="+", type=positive, default=[1, 2, 3, 4, 6, 8], metavar="N")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--batch", type=positive, default=512, help="global batch of strong scaling (default: 512)")
    parser.add_argument(
        "--share", type=positive, default=64, help="batch of each process in weak scaling (default: 64)"
    )
    parser.add_argument(
        "--steps", type=positive, default=20, help="steps in a window, after 5 of warm-up (default: 20)"
    )
    parser.add_argument("--windows", type=positive, default=3, help="repeats, which give the spread (default: 3)")
    record.add_options(parser, "scale", results=None)


def run(given: argparse.Namespace) -> int:
    """Measure and record all runs that did not fail. Efficiency refers to the first one of a mode."""
    run = Run(given, "Scaling")
    run.notes += [
        f"{given.recipe}; the medians of {given.windows} windows of {given.steps} steps, in brackets the extremes.",
        (
            "Efficiency: images/s and process, divided by those of the first line of the mode. Exposed share: the part of a step"
            " that only waits for the all-reduce, and so for slower ranks."
        ),
        "* more processes than cores: they take turns, which no communication library can make up for.",
    ]
    counts, num_train = that_fit(given.processes, run), max(given.batch, given.share * max(given.processes))
    with images.provided([given.recipe], num_train=num_train) as (environ, run.facts["data"]):
        for mode in given.modes:
            first: Figures | None = None
            for num in counts:
                batch = given.batch if mode == "strong" else given.share * num
                config = {"recipe": given.recipe, "globalBatchSize": batch}
                sizes = {"warmup_steps": 5, "steps": given.steps, "windows": given.windows}
                task = Task(program="trainer", config=config, **sizes)
                measured = partial(processes.run, task, world_size=num, environ=environ)
                if figures := run.result(f"{mode} scaling on {num} processes", measured):
                    first = first or figures
                    shared = figures.device == "cpu" and num > run.facts["cores"]
                    shares = {"efficiency": efficiency(figures, first), "exposed share": figures.exposed_share}
                    percent = {name: f"{100 * value:.0f} %" for name, value in shares.items()}
                    run.add({"scaling": mode + "*" * shared, **figures.row(), **percent})
    return run.end()


def efficiency(figures: Figures, first: Figures) -> float:
    """Images a second and process, as a share of those of the first measurement; 1 is linear scaling in both modes."""
    per_process = figures.images_per_second.median / figures.world_size
    return per_process / (first.images_per_second.median / first.world_size)
