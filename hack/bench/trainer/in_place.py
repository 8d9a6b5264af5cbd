"""`in-place`: what restarts in place cost a training that nothing disturbs: CPU time of steps with and without them, in turn.

CPU time of all ranks, since on a shared machine elapsed time would measure the neighbours.
"""

import argparse

from bench.driver import Run, in_turn
from bench.trainer import sizes

from ddpjob_measure import images, processes
from ddpjob_measure.record import positive
from ddpjob_measure.task import Spread, Task
from ddpjob_ranks import contract

WAYS = {"without": {}, "with": {contract.DDPJOB_IN_PLACE_RESTARTS: "1"}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    sizes.add_options(parser, "in-place", recipe=images.DIGITS, steps=300, batch=64)
    parser.add_argument("--ranks", type=positive, default=2, help="number of processes (default: 2)")
    parser.add_argument("--pairs", type=positive, default=5, help="runs without and with them, in turn (default: 5)")


def run(given: argparse.Namespace) -> int:
    """Measure and print; returns 0."""
    run = Run(given, "Restarts in place", recipe=given.recipe, ranks=given.ranks)
    keys = {"recipe": given.recipe, "globalBatchSize": given.batch}
    task = Task(program="trainer", config=keys, warmup_steps=5, steps=given.steps, windows=1)
    with images.provided([given.recipe], num_train=given.batch) as (environ, _):

        def cpu_ms(way: str) -> float:
            variables = {**environ, **WAYS[way]}
            return 1e3 * processes.run(task, world_size=given.ranks, environ=variables).cpu_seconds.median

        found = in_turn(WAYS, given.pairs, cpu_ms)
    pairs = zip(found["without"], found["with"], strict=True)
    run.add(
        {f"CPU ms a step, {way}": Spread.of(trials) for way, trials in found.items()}
        | {"change in each pair, %": Spread.of((kept / without - 1) * 100 for without, kept in pairs)}
    )
    return run.end()
