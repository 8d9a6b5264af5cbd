"""`scale`: the same training on more and more processes, at a fixed global batch (strong) and a fixed share (weak)."""

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ddpjob_measure import images, jobs, options, plot, processes, record
from ddpjob_measure.options import positive
from ddpjob_measure.series import Series
from ddpjob_measure.surroundings import surroundings
from ddpjob_measure.task import Figures, Task
from ddpjob_trainer.recipe_names import short_names

#: Gives the figures of a task on a number of ranks.
Runner = Callable[[Task, int], Figures]
MODES = ("strong", "weak")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One line of the table."""

    mode: str
    figures: Figures
    efficiency: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--recipe", choices=short_names(), default="digits")
    parser.add_argument("--processes", nargs="+", type=positive, default=[1, 2, 3, 4, 6, 8], metavar="N")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--batch", type=positive, default=512, help="global batch of strong scaling (default: 512)")
    parser.add_argument(
        "--share", type=positive, default=64, help="batch of each process in weak scaling (default: 64)"
    )
    parser.add_argument("--warmup", type=int, default=5, help="untimed steps (default: 5)")
    parser.add_argument("--steps", type=positive, default=20, help="steps in a window (default: 20)")
    parser.add_argument("--windows", type=positive, default=3, help="repeats, which give the spread (default: 3)")
    options.add_record(parser, "scale")
    jobs.add_arguments(parser)


def run(given: argparse.Namespace) -> int:
    """Measure, print the table, write it, its JSON and the plot, of all runs that did not fail."""
    plot.check_available()
    path, facts, series = options.record_path(given), surroundings(), Series()
    if given.kubeconfig is None:
        given.processes = series.that_fit(given.processes)
    with _runner(given, facts) as runner:
        points = [point for mode in given.modes for point in measure(given, mode, runner, series)]
    series.check_has(points)
    text = record.page("Scaling", facts, [table(points, int(facts["cores"]))], [*_notes(given), *series.notes])
    print("\n" + text)
    rows = [record.as_row(point.figures, mode=point.mode, efficiency=point.efficiency) for point in points]
    record.save(path, text, facts, rows)
    plot.draw(path.with_name(path.name + ".png"), [(point.mode, point.figures) for point in points])
    return series.exit_code()


@contextlib.contextmanager
def _runner(given: argparse.Namespace, facts: dict[str, str | int | float]) -> Iterator[Runner]:
    """On a cluster where one is named, else on this machine with images of its own."""
    if given.kubeconfig is not None:
        facts["cluster"] = str(given.kubeconfig)
        yield jobs.Cluster.of(given).run
        return
    num_train = max(given.batch, given.share * max(given.processes, default=1))
    with images.provided([given.recipe], num_train=num_train) as (environ, facts["data"]):
        yield lambda task, world_size: processes.run(task, world_size=world_size, environ=environ)


def measure(given: argparse.Namespace, mode: str, runner: Runner, series: Series) -> list[Point]:
    """One point for each number of processes that did not fail. The first of them is what efficiency refers to."""
    measured: list[Figures] = []
    for num in given.processes:
        batch = given.batch if mode == "strong" else given.share * num
        task = Task(
            program="trainer",
            config={"recipe": given.recipe, "globalBatchSize": batch},
            warmup_steps=given.warmup,
            steps=given.steps,
            windows=given.windows,
        )
        if figures := series.result(f"{mode} scaling on {num} processes", partial(runner, task, num)):
            measured.append(figures)
    return [Point(mode=mode, figures=figures, efficiency=efficiency(figures, measured[0])) for figures in measured]


def efficiency(figures: Figures, first: Figures) -> float:
    """Images a second and process, as a share of those of the first measurement; 1 is linear scaling in both modes."""
    per_process = figures.images_per_second.median / figures.world_size
    return per_process / (first.images_per_second.median / first.world_size)


def table(points: Sequence[Point], num_cores: int) -> str:
    """Markdown; `num_cores` are those of this machine, which processes on CPUs share."""
    lines = []
    for point in points:
        figures = point.figures
        shared = figures.device == "cpu" and figures.world_size > num_cores
        lines.append(
            [
                point.mode,
                f"{figures.world_size}{'*' if shared else ''}",
                figures.global_batch_size,
                record.with_spread(figures.images_per_second),
                record.with_spread(figures.step_seconds, 1e3),
                f"{100 * point.efficiency:.0f} %",
                f"{100 * figures.exposed_share:.0f} %",
                *record.parts_in_milliseconds(figures),
            ]
        )
    header = ["scaling", "processes", "global batch", "images/s", "ms a step", "efficiency", "exposed share"]
    return record.table([*header, *record.PART_TITLES], lines)


def _notes(given: argparse.Namespace) -> list[str]:
    return [
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
