"""`in-place`: what restarts in place cost a training that nothing disturbs: CPU time of steps with and without them, in turn.

CPU time of all ranks, since on a shared machine elapsed time would measure the neighbours.
"""

import argparse

from bench.driver import Run, in_turn
from ddpjob_measure import images, processes, record
from ddpjob_measure.record import positive
from ddpjob_measure.task import Spread, Task
from ddpjob_ranks import contract
from ddpjob_trainer.recipe_names import short_names

WAYS = {"without": {}, "with": {contract.DDPJOB_IN_PLACE_RESTARTS: "1"}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--recipe", choices=short_names(), default=images.DIGITS, help="default: digits")
    parser.add_argument("--ranks", type=positive, default=2, help="number of processes (default: 2)")
    parser.add_argument("--batch", type=positive, default=64, help="global batch (default: 64)")
    parser.add_argument("--steps", type=positive, default=300, help="steps of a run (default: 300)")
    parser.add_argument("--pairs", type=positive, default=5, help="runs without and with them, in turn (default: 5)")
    record.add_options(parser, "in-place", results=None)


def run(given: argparse.Namespace) -> int:
    """Measure and print; returns 0."""
    run = Run(given, "Restarts in place")
    run.facts |= {"recipe": given.recipe, "ranks": given.ranks}
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
