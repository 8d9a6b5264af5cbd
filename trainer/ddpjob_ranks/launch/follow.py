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
from pathlib import Path

from ddpjob_ranks import contract, generation, slots
from ddpjob_ranks.errors import ConfigError, PeersMissingError, ReplacedError
from ddpjob_ranks.launch import identity, rendezvous
from ddpjob_ranks.launch.identity import Worker

#: Time between two looks for a newer store. Each is one short connection from each node to node 0.
LOOK_SECONDS = 5.0


def main() -> int:
    """Wait; returns the exit code."""
    number = int(sys.argv[1])
    stores = int(os.environ[contract.DDPJOB_INHERITED])
    os.environ[contract.DDPJOB_GENERATION] = sys.argv[1]  # so that this process does not serve the store
    worker = identity.resolve(os.environ)
    assert isinstance(worker, Worker), "the launcher passes the variables of a rank"
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):  # the ranks report the same waits
        try:
            _follow(worker, number, stores)
        except (ConfigError, PeersMissingError, ReplacedError):  # which the ranks notice, too
            return contract.EXIT_PEER_LOST
    return contract.EXIT_SUCCESS


def _follow(worker: Worker, number: int, stores: int) -> None:
    """Return when the next generation has begun, in the store or in the one that takes its place after a loss."""
    looker = None
    while True:
        store, joined = rendezvous.open_store_of_attempt(worker, oldest=generation.newest_store(stores))
        if looker is None and contract.DDPJOB_REPLACEMENT_SECONDS in os.environ:
            looker = threading.Thread(target=_end_at_newer_store, args=(worker, joined, stores), daemon=True)
            looker.start()
        try:
            if number > 1 and slots.step_of(stores, generation.JOINED_SLOT) == slots.NO_STEP:
                generation.report_no_session(store)
            generation.wait_for_next(store, number)
        except RuntimeError:
            continue  # the ranks may already be connected to the next store
        return


def _end_at_newer_store(worker: Worker, joined: int, stores: int) -> None:
    """End this process once the master's name leads to a newer store than the ranks and this process have joined."""
    while True:
        time.sleep(LOOK_SECONDS)
        found = rendezvous.number_at_master(worker)
        if found is not None and found > max(joined, slots.step_of(stores, generation.JOINED_SLOT)):
            generation.record_store(stores, found, generation.FOUND_SLOT)
            os._exit(contract.EXIT_SUCCESS)


if __name__ == "__main__":
    sys.exit(main())
