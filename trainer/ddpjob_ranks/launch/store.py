"""`python -m ddpjob_ranks.launch.store`: serves the store of a gang on node 0, for as long as its launcher runs."""

import os
import signal
import sys
from datetime import timedelta

from ddpjob_ranks import generation, termination
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.launch import identity, launcher, open_files, rendezvous


def main() -> int:
    """Serve until the launcher ends. Returns only if the port is taken."""
    # Slurm sends these to all processes of a job, and the ranks need the store to stop together.
    for number in launcher.FORWARDED:
        signal.signal(number, signal.SIG_IGN)
    (worker,) = identity.node(os.environ).workers
    open_files.allow(worker.world_size)
    try:
        rendezvous.wait_for_free_port(worker)
    except ConfigError as error:
        return termination.refuse(error)
    store = rendezvous.connected(worker, timedelta(seconds=60), serves=True)
    generation.set_up_store(rendezvous.for_attempt(store), os.environ)
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
