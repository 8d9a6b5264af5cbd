"""`python -m bench.trainer speed|accuracy|overhead`: what the trainer costs, next to other programs and to itself."""

import sys
from collections.abc import Sequence

from bench.trainer import accuracy, overhead, speed
from ddpjob_measure import commands


def main(arguments: Sequence[str]) -> int:
    """Run one of them; returns the exit code."""
    known = {"speed": speed, "accuracy": accuracy, "overhead": overhead}
    return commands.run(arguments, known, prog="python -m bench.trainer", about=__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
