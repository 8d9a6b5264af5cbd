"""`scale`: the same training on more and more processes, at a fixed global batch (strong) and a fixed share (weak)."""

import argparse
import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from bench.driver import Run
from bench.trainer import on_cluster, sizes

from ddpjob_measure import images, processes
from ddpjob_measure.record import positive
from ddpjob_measure.task import Figures, Task

#: Gives the figures of a task on a number of ranks.
Runner = Callable[[Task, int], Figures]
MODES = ("strong", "weak")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    sizes.add_options(parser, "scale", recipe="digits", steps=20, batch=512)
    parser.add_argument("--processes", nargs="+", type=positive, default=[1, 2, 3, 4, 6, 8], metavar="N")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument(
        "--share", type=positive, default=64, help="batch of each process in weak scaling (default: 64)"
    )
    parser.add_argument("--warmup", type=int, default=5, help="untimed steps (default: 5)")
    on_cluster.add_arguments(parser)


def run(given: argparse.Namespace) -> int:
    """Measure and record all runs that did not fail."""
    run = Run(given, "Scaling")
    run.notes += [
        (
            f"{given.recipe}; strong: global batch {given.batch}; weak: {given.share} a process; {given.warmup} steps of"
            f" warm-up, then {given.windows} windows of {given.steps} steps: the median, in brackets the extremes."
        ),
        (
            "Efficiency: images/s and process, divided by those of the first line of the mode. Exposed share: the part of a"
            " step that only waits for the all-reduce, and so for slower ranks."
        ),
        "* more processes than cores: they take turns, which no communication library can make up for.",
    ]
    counts = given.processes if given.kubeconfig else sizes.that_fit(given.processes, run)
    with _runner(given, run) as runner:
        for mode in given.modes:
            _measure(given, mode, counts, runner, run)
    return run.end()


@contextlib.contextmanager
def _runner(given: argparse.Namespace, run: Run) -> Iterator[Runner]:
    """On a cluster where one is named, else on this machine with images of its own."""
    if given.kubeconfig:
        run.facts["cluster"] = str(given.kubeconfig)
        yield partial(on_cluster.run, given, on_cluster.template_of(given))
        return
    num_train = max(given.batch, given.share * max(given.processes, default=1))
    with images.provided([given.recipe], num_train=num_train) as (environ, run.facts["data"]):
        yield lambda task, world_size: processes.run(task, world_size=world_size, environ=environ)


def _measure(given: argparse.Namespace, mode: str, counts: list[int], runner: Runner, run: Run) -> None:
    """One row for each number of processes that does not fail. The first of them is what efficiency refers to."""
    first: Figures | None = None
    for num in counts:
        task = Task(
            program="trainer",
            config={"recipe": given.recipe, "globalBatchSize": given.batch if mode == "strong" else given.share * num},
            warmup_steps=given.warmup,
            steps=given.steps,
            windows=given.windows,
        )
        if figures := run.result(f"{mode} scaling on {num} processes", partial(runner, task, num)):
            first = first or figures
            shared = figures.device == "cpu" and num > run.facts["cores"]
            shares = {
                "efficiency": f"{100 * efficiency(figures, first):.0f} %",
                "exposed share": f"{100 * figures.exposed_share:.0f} %",
            }
            run.add({"scaling": mode + "*" * shared, **figures.row(), **shares})


def efficiency(figures: Figures, first: Figures) -> float:
    """Images a second and process, as a share of those of the first measurement; 1 is linear scaling in both modes."""
    per_process = figures.images_per_second.median / figures.world_size
    return per_process / (first.images_per_second.median / first.world_size)
