"""`python -m ddpjob_ranks.launch.follow N`: ends with exit code 0 once ranks of another node have begun generation N + 1.

One such process runs next to the ranks of each node. A thread in a rank could not do this for a rank that is stopped, or that
runs compiled code without end.
"""

import os
import sys
from contextlib import redirect_stderr
from pathlib import Path

from ddpjob_ranks import contract, generation
from ddpjob_ranks.errors import ConfigError, PeersMissingError
from ddpjob_ranks.launch import identity, rendezvous


def main() -> int:
    """Wait; returns the exit code."""
    os.environ[contract.DDPJOB_GENERATION] = sys.argv[1]  # so that this process does not serve the store
    worker = identity.resolve(os.environ)
    assert isinstance(worker, identity.Worker), "the launcher passes the variables of a rank"
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):  # the ranks report the same waits
        try:
            store = rendezvous.open_store_of_attempt(worker)
            generation.wait_for_next(store, int(sys.argv[1]))
        except (ConfigError, PeersMissingError, RuntimeError):  # which the ranks notice, too
            return contract.EXIT_PEER_LOST
    return contract.EXIT_SUCCESS


if __name__ == "__main__":
    sys.exit(main())
