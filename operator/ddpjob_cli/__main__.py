"""Entry of the `ddpjob` command."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ddpjob_cli.run_local import EXIT_USAGE, run_local


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the result is the exit code."""
    # `ddpjob run ... | head` ends without an error message. The ranks end whenever this process ends.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    options = _parser().parse_args(arguments)
    if not options.local:
        print(
            f"ddpjob run: only --local is supported so far. To run the job on a cluster: kubectl apply -f {options.file}",
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
        " directory. Every run is a new job. Its logs and volumes are kept in .ddpjob/runs. Exit codes: 0 succeeded,"
        " 1 failed, 2 wrong usage or an invalid file, 130 interrupted by Ctrl-C.",
    )
    run.add_argument(
        "file", type=Path, metavar="FILE", help="YAML file with one DDPJob and the ConfigMaps that it uses"
    )
    run.add_argument("--local", action="store_true", help="run the job on this machine, each pod as a process")
    run.add_argument("--verbose", action="store_true", help="also show commands and progress lines")
    return parser


if __name__ == "__main__":
    sys.exit(main())
