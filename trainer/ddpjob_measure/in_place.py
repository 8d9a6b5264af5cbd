"""`in-place`: what restarts in place cost a training that nothing disturbs: CPU time of steps with and without them, in turn.

CPU time of all ranks, since on a shared machine elapsed time would measure the neighbours.
"""

import argparse
from collections.abc import Sequence
from statistics import median

from ddpjob_measure import images, processes, record
from ddpjob_measure.options import positive
from ddpjob_measure.surroundings import headline, surroundings
from ddpjob_measure.task import Task
from ddpjob_ranks import contract
from ddpjob_trainer.recipe_names import short_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--recipe", choices=short_names(), default=images.DIGITS, help="default: digits")
    parser.add_argument("--ranks", type=positive, default=2, help="number of processes (default: 2)")
    parser.add_argument("--batch", type=positive, default=64, help="global batch (default: 64)")
    parser.add_argument("--steps", type=positive, default=300, help="steps of a run (default: 300)")
    parser.add_argument("--pairs", type=positive, default=5, help="runs without and with them, in turn (default: 5)")


def run(given: argparse.Namespace) -> int:
    """Measure and print; returns 0."""
    keys = {"recipe": given.recipe, "globalBatchSize": given.batch}
    task = Task(program="trainer", config=keys, warmup_steps=5, steps=given.steps, windows=1)
    found = []
    with images.provided([given.recipe], num_train=given.batch) as (environ, _):
        for _ in range(given.pairs):
            without, kept = (
                processes.run(task, world_size=given.ranks, environ={**environ, **variables}).cpu_seconds.median
                for variables in ({}, {contract.DDPJOB_IN_PLACE_RESTARTS: "1"})
            )
            found.append((without, kept))
            print(f"{given.recipe}: {comparison(found[-1:])}", flush=True)
    print(f"\n{headline(surroundings())}\n\n{given.recipe}: {comparison(found)}")
    return 0


def comparison(pairs: Sequence[tuple[float, float]]) -> str:
    """Of CPU seconds of a step, without and with restarts in place in each pair."""
    without, kept = (record.number(median(column) * 1e3) for column in zip(*pairs, strict=True))
    changes = [(with_ / before - 1) * 100 for before, with_ in pairs]
    spread = f" ({min(changes):+.1f} to {max(changes):+.1f} %)" if len(changes) > 1 else ""
    return f"{without} ms of CPU time a step, {kept} ms with restarts in place: {median(changes):+.1f} %{spread}"
