"""`python -m ddpjob_ranks.launch.join`: which generation of ranks a pod that replaces another one starts with.

The others wait in a generation that the ranks of this pod lack, so that is the one. Where they have not noticed yet that the
earlier pod is gone, its ranks belong to their generation, and the next one begins with those of this pod.

Writes the number of the generation as the step of the slot that it inherits. It is a process of its own, since the launcher
does not import torch.
"""

import os
import sys
from collections.abc import Sequence

from torch._C._distributed_c10d import Store

from ddpjob_ranks import contract, generation, slots, termination
from ddpjob_ranks.errors import ConfigError, PeersMissingError
from ddpjob_ranks.launch import identity, preflight, rendezvous


def main() -> int:
    """Ask the store, which the launcher of node 0 serves; returns the exit code."""
    worker = identity.resolve(os.environ)
    assert isinstance(worker, identity.Worker), "the launcher passes the variables of a rank"
    try:
        store = rendezvous.open_store_of_attempt(worker)
    except ConfigError as error:
        return termination.refuse(error)
    except PeersMissingError as error:
        return _give_up(worker, str(error))
    ranks = range(worker.rank, worker.rank + worker.local_world_size)
    generation.replace(store, ranks, int(os.environ[contract.DDPJOB_REPLACEMENT]))
    number = generation_to_join(store, ranks)
    if number is None:
        return _give_up(worker, "the other ranks do not start again in place, since none uses ddpjob.session")
    slots.write(int(os.environ[contract.DDPJOB_INHERITED]), number, lambda file: file.write(b"1"))
    return contract.EXIT_SUCCESS


def generation_to_join(store: Store, ranks: Sequence[int]) -> int | None:
    """The first generation from the newest one on that lacks these ranks; None if none was announced."""
    number = generation.newest(store)
    if not number:
        return None
    has_begun = any(preflight.has_joined(rendezvous.of_generation(store, number), rank) for rank in ranks)
    return number + has_begun


def _give_up(worker: identity.Worker, reason: str) -> int:
    """End as a rank that lost its peers: the cause is not in this pod."""
    text = f"rank {worker.rank}{contract.TERMINATION_ECHO_SUFFIX}\n{reason}"
    print(text, file=sys.stderr)
    termination.write(text, echo=True)
    return contract.EXIT_PEER_LOST


if __name__ == "__main__":
    sys.exit(main())
