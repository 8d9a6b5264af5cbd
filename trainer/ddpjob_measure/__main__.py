"""`python -m ddpjob_measure gpu|buckets|verify-resume`: a GPU put to the test, DDP's buckets, bits after a resume."""

import sys
from collections.abc import Sequence

import ddpjob_measure.carry  # noqa: F401 - first, as it makes importable what the others import
from ddpjob_measure import buckets, commands, gpu, verify_resume


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    known = {"gpu": gpu, "buckets": buckets, "verify-resume": verify_resume}
    return commands.run(arguments, known, prog="python -m ddpjob_measure", about=__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
