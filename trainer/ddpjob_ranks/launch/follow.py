"""`python -m ddpjob_ranks.launch.follow N`: ends with exit code 0 once ranks of another node have begun generation N + 1.

It does so, too, once a new pod of node 0 serves another store: an earlier pod that still responds, or whose node is switched
off, does not end the connections to its own store.

One such process runs next to the ranks of each node. A thread in a rank could not do this for a rank that is stopped, or that
runs compiled code without end.
"""

import os
import sys
import threading
import time
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path

from ddpjob_ranks import contract, generation, slots
from ddpjob_ranks.errors import ConfigError, ReplacedError
from ddpjob_ranks.launch import identity, rendezvous
from ddpjob_ranks.launch.identity import Worker

#: Time between two looks for a newer store. Each is one short connection from each node to node 0.
LOOK_SECONDS = 5.0
#: A look at a host that accepts connections and does not respond leaves a thread, since torch waits for a response without limit.
#: When there are so many, this process ends, and the launcher starts another one.
MAX_THREADS = 20


def main() -> int:
    """Wait; returns the exit code."""
    number = int(sys.argv[1])
    stores = int(os.environ[contract.DDPJOB_INHERITED])
    os.environ[contract.DDPJOB_GENERATION] = sys.argv[
        1
    ]  # read by rendezvous_timeout(), which is as long as that of ranks
    (worker,) = identity.node(os.environ).workers
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):  # the ranks report the same waits
        try:
            Follower(worker, number, stores).follow()
        except (ConfigError, ReplacedError):  # which the ranks notice, too
            return contract.EXIT_PEER_LOST
    return contract.EXIT_SUCCESS


@dataclass(slots=True)
class Follower:
    """What waits on a node for the end of its generation."""

    worker: Worker
    number: int
    """The generation to see the end of."""
    stores: int
    """File descriptor of what the ranks of this node know of stores (`Generation.stores`)."""
    joined: int = slots.NO_STEP
    """Number of the store in which this process waits."""

    def follow(self) -> None:
        """Return when the next generation has begun, in the store or in the one that takes its place after a loss.

        Raises:
            ConfigError: the master's name does not resolve, outside of a DDPJob.
            ReplacedError: another pod has replaced this one.
        """
        looker = threading.Thread(target=self._end_at_newer_store, daemon=True)
        while True:
            try:
                store, self.joined = rendezvous.open_store_of_attempt(
                    self.worker, oldest=generation.newest_store(self.stores)
                )
                if not looker.ident and contract.DDPJOB_REPLACEMENT_SECONDS in os.environ:
                    looker.start()
                if self.number > 1 and slots.step_of(self.stores, generation.JOINED_SLOT) == slots.NO_STEP:
                    generation.report_no_session(store)
                rendezvous.wait_for_key(store, generation.key(self.number + 1))
            except ReplacedError:
                raise
            except RuntimeError:
                continue  # the ranks may already be connected to the next store, or train on without one
            return

    def _end_at_newer_store(self) -> None:
        while threading.active_count() < MAX_THREADS:
            time.sleep(LOOK_SECONDS)
            found = rendezvous.number_at_master(self.worker)
            if found is not None and self.is_left_behind(found):
                generation.record_store(self.stores, found, generation.FOUND_SLOT)
                os._exit(contract.EXIT_SUCCESS)
        os._exit(contract.EXIT_PROGRAM_ERROR)

    def is_left_behind(self, found: int) -> bool:
        """Whether this process, or a rank of the node, waits in an older store than the one that the master's name leads to.

        They may have joined different ones, since each connects by itself, and the name may change in between.
        """
        of_ranks = generation.lowest_joined(self.stores, self.worker.local_world_size)
        return found > (self.joined if of_ranks is None else min(self.joined, of_ranks))


if __name__ == "__main__":
    sys.exit(main())
