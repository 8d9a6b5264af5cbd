"""`python -m ddpjob_ranks.launch.join`: which generation of ranks a pod that replaces another one starts with.

The others wait in a generation that the ranks of this pod lack, so that is the one. Where they have not noticed yet that the
earlier pod is gone, its ranks belong to their generation, and the next one begins with those of this pod. A new store, which a
new pod of node 0 serves, knows of no generation until ranks of another pod have joined it.

Writes the number of the generation as the step of the slot that it inherits. It is a process of its own, since the launcher
does not import torch.
"""

import os
import sys
import time
from functools import partial

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ddpjob_ranks import contract, generation, slots, termination
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.launch import identity, rendezvous
from ddpjob_ranks.launch.identity import Worker

#: Seconds between two looks for a store after one was lost.
LOOK_SECONDS = 0.2


def main() -> int:
    """Ask the store, which the launcher of node 0 serves; returns the exit code."""
    (worker,) = identity.node(os.environ).workers
    try:
        number = find_generation(worker)
    except ConfigError as error:
        return termination.refuse(error)
    except RuntimeError as error:
        return _give_up(worker, str(error))
    if number is None:
        return _give_up(worker, "the other ranks do not start again in place, since none uses ddpjob.session")
    slots.mark(int(os.environ[contract.DDPJOB_INHERITED]), number, slot=0)
    return contract.EXIT_SUCCESS


def find_generation(worker: Worker) -> int | None:
    """The generation to join, once ranks of another pod have joined the store, which may be new, or none of them uses a session.

    They may still load their data, before they open their session. A store that is lost meanwhile, with the pod that serves it,
    is looked for again for a limited time.

    Raises:
        ConfigError: the master's name does not resolve, outside of a DDPJob.
        RuntimeError: no store, or none with ranks of another pod, was found in time.
    """
    replaced, limit = generation.replacements(os.environ), rendezvous.rendezvous_timeout()
    end = time.monotonic() + limit.total_seconds()
    while True:
        try:
            store, _ = rendezvous.open_store_of_attempt(worker, oldest=replaced.get(0, 0))
            generation.replace(store, replaced)
            rendezvous.wait_until(partial(_reason_to_wait, store), rank=worker.rank, limit=limit)
            return generation_to_join(store, node_rank=worker.node_rank)
        except dist.DistError:
            if time.monotonic() > end:
                raise
            time.sleep(LOOK_SECONDS)


def _reason_to_wait(store: Store) -> str | None:
    if generation.newest(store) or generation.has_no_session(store):
        return None
    return "no other rank of the attempt has joined the store of rank 0"


def generation_to_join(store: Store, *, node_rank: int) -> int | None:
    """The first generation from the newest one on that lacks the ranks of this node; None if none was announced."""
    number = generation.newest(store)
    if not number:
        return None
    while generation.has_begun(store, number, node_rank):
        number += 1
    return number


def _give_up(worker: Worker, reason: str) -> int:
    """End as a rank that lost its peers: the cause is not in this pod."""
    text = f"rank {worker.rank}{contract.TERMINATION_ECHO_SUFFIX}\n{reason}"
    print(text, file=sys.stderr)
    termination.write(text, echo=True)
    return contract.EXIT_PEER_LOST


if __name__ == "__main__":
    sys.exit(main())
