"""A command line of several commands, each a module with `add_arguments(parser)` and `run(given)`, which returns the exit code."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

from ddpjob_measure.task import MeasureError
from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError


def run(arguments: Sequence[str], commands: Mapping[str, ModuleType], *, prog: str, about: str | None) -> int:
    """Run one command; returns its exit code. A command that sets `takes_others` finds arguments it does not know in `others`."""
    parser = argparse.ArgumentParser(prog=prog, description=about, allow_abbrev=False)
    subparsers = parser.add_subparsers(dest="command", required=True)
    for name, command in commands.items():
        summary = (command.__doc__ or "").partition(": ")[2].splitlines()[0]
        command.add_arguments(
            subparsers.add_parser(name, help=summary, description=command.__doc__, allow_abbrev=False)
        )
    given, others = parser.parse_known_args(arguments)
    if others and not getattr(given, "takes_others", False):
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    given.others = others
    try:
        return int(commands[given.command].run(given))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return contract.EXIT_BAD_CONFIG
    except MeasureError as error:
        print(f"{given.command}: {error}", file=sys.stderr)
        return contract.EXIT_PROGRAM_ERROR
