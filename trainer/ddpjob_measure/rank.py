"""`python -m ddpjob_measure.rank --task JSON`: one measured rank, or the launcher of a node's ranks.

The environment says who it is, as it does for the trainer, so it runs on this machine and in a pod alike. Rank 0 prints
one line with the figures (see task.PREFIX).
"""

import argparse
import os
import sys
from collections.abc import Sequence

from ddpjob_measure.task import Task
from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.launch import command, identity, launcher


def main(arguments: Sequence[str]) -> int:
    """Measure to the end; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ddpjob_measure.rank")
    parser.add_argument("--task", required=True, type=Task.from_json)
    task: Task = parser.parse_args(arguments).task
    place = identity.resolve(os.environ)
    if isinstance(place, identity.Node):
        program = ["-m", "ddpjob_measure.rank", *arguments]
        if identity.in_place_restarts(os.environ):
            return command.start(program, os.environ)
        return launcher.run(place, [sys.executable, *program], os.environ)
    if task.program != "plain":
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the trainer does, before torch is loaded
    from ddpjob_measure import measuring

    try:
        figures = measuring.run(task, place)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return contract.EXIT_BAD_CONFIG
    if place.rank == 0:
        print(figures.line(), flush=True)
    return contract.EXIT_SUCCESS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
