"""`python -m ddpjob_trainer`: a rank, or the launcher of a pod's ranks, as the environment says."""

import os
import sys
from collections.abc import Sequence

from ddpjob_trainer import contract, launch, launcher, termination
from ddpjob_trainer.arguments import parse_arguments
from ddpjob_trainer.config import ConfigError


def main(arguments: Sequence[str]) -> int:
    """Run to the end; returns the exit code (contract.EXIT_CODES)."""
    try:
        config = parse_arguments(arguments)
        place = launch.resolve(os.environ)
    except ConfigError as error:
        print(error, file=sys.stderr)
        termination.write(str(error), echo=False)
        return contract.EXIT_BAD_CONFIG
    if isinstance(place, launch.Node):
        return launcher.run(place, [sys.executable, "-m", "ddpjob_trainer", *arguments], os.environ)

    # Idle threads sleep. By default they spin, which on cores shared with other pods starves the thread they wait for
    # (digits with 2 threads on 2 busy cores: 31.7 s against 7.3 s). Read when torch loads its OpenMP runtime.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # torch takes seconds to load, and the launcher does without.
    from ddpjob_trainer import worker

    return worker.run(config, place)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
