"""`python -m ddpjob_measure bench|gpu|scale|accuracy|compare|buckets|overhead|in-place|plot|verify-resume`: what the trainer costs and keeps."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

import ddpjob_measure.carried  # noqa: F401 - first, as it makes importable what the others import
from ddpjob_measure import (
    accuracy,
    bench,
    bucket_report,
    compare,
    gpu,
    in_place,
    overhead,
    run_picture,
    scale,
    verify_resume,
)
from ddpjob_measure.task import MeasureError
from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError


class Command(Protocol):
    """A module with one command."""

    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Its options."""

    def run(self, given: argparse.Namespace) -> int:
        """Run it; gives the exit code."""


COMMANDS: Mapping[str, Command] = {
    "bench": bench,
    "gpu": gpu,
    "scale": scale,
    "accuracy": accuracy,
    "compare": compare,
    "buckets": bucket_report,
    "overhead": overhead,
    "in-place": in_place,
    "plot": run_picture,
}


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    if arguments[:1] == ["verify-resume"]:  # it passes on to the trainer what it does not know
        return verify_resume.main(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m ddpjob_measure", description=__doc__, allow_abbrev=False)
    subparsers = parser.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        summary = (command.__doc__ or "").partition(": ")[2].splitlines()[0]
        command.add_arguments(subparsers.add_parser(name, help=summary, description=command.__doc__))
    subparsers.add_parser(
        "verify-resume", help="a training that is killed and resumed ends with the same bits as one that is not"
    )
    given = parser.parse_args(arguments)
    try:
        return COMMANDS[given.command].run(given)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return contract.EXIT_BAD_CONFIG
    except MeasureError as error:
        print(error, file=sys.stderr)
        return contract.EXIT_PROGRAM_ERROR


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
