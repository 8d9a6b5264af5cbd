"""`python -m ddpjob_trainer`: a rank, or the launcher of a pod's ranks, depending on the environment."""

import os
import sys
import time
from collections.abc import Sequence

from ddpjob_ranks import contract, termination
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.launch import command, identity
from ddpjob_trainer.arguments import parse_arguments

#: `debug: true`: torch, DDP and NCCL log what they set up and what takes their time. Read when torch loads.
#: Not DETAIL, with which torch 2.15 ends with a segmentation fault when DDP is created on gloo.
DEBUG_VARIABLES = {"TORCH_DISTRIBUTED_DEBUG": "INFO", "TORCH_CPP_LOG_LEVEL": "INFO", "NCCL_DEBUG": "INFO"}


def main(arguments: Sequence[str]) -> int:
    """Run to the end; returns the exit code (`contract.EXIT_CODES`)."""
    try:
        given = parse_arguments(arguments)
        os.environ.update(given.rendezvous)
        place = identity.resolve(os.environ)
        if given.config.debug:
            os.environ.update(DEBUG_VARIABLES)
        restarts = identity.in_place_restarts(os.environ) and contract.DDPJOB_GENERATION not in os.environ
        if not isinstance(place, identity.Worker) or restarts:
            return command.start(["-m", "ddpjob_trainer", *given.for_ranks()], os.environ, ["ddpjob_trainer.worker"])
    except ConfigError as error:
        return termination.refuse(error)

    for name, value in command.RANK_DEFAULTS.items():
        os.environ.setdefault(name, value)
    # torch takes seconds to load, and the launcher does without.
    imported_from = time.monotonic()
    from ddpjob_trainer import worker

    return worker.run(given.config, place, imported_from=imported_from)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
