"""Entry of the `ddpjob` command."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ddpjob_cli.run_local import EXIT_USAGE, run_local


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the result is the exit code."""
    # `ddpjob run ... | head` ends quietly; the ranks end with it, as they do however this process dies.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    options = _parser().parse_args(arguments)
    if not options.local:
        print(
            f"ddpjob run: without --local a job runs on a cluster, which this command does not reach yet:"
            f" kubectl apply -f {options.file}",
            file=sys.stderr,
        )
        return EXIT_USAGE
    try:
        return run_local(options.file, verbose=options.verbose)
    except (ValueError, OSError) as error:
        print(f"ddpjob run: {error}", file=sys.stderr)
        return EXIT_USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ddpjob", description="Distributed PyTorch training, described by a DDPJob.")
    commands = parser.add_subparsers(title="commands", required=True)
    run = commands.add_parser(
        "run",
        help="run a DDPJob",
        description="Run the DDPJob of a YAML file on this machine, each pod as a process that starts in the current"
        " folder. Every run is a new job; its logs and volumes stay in .ddpjob/runs. Exit code: 0 succeeded, 1 failed,"
        " 2 wrong use or a bad file, 130 interrupted by Ctrl-C.",
    )
    run.add_argument(
        "file", type=Path, metavar="FILE", help="YAML file with one DDPJob, and ConfigMaps if it needs any"
    )
    run.add_argument("--local", action="store_true", help="run it on this machine, each pod as a process")
    run.add_argument("--verbose", action="store_true", help="show commands and progress lines, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
