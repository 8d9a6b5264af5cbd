"""A script with a session whose ranks print how many collectives each step began; the argument says how they keep their state."""

import math
import os
import sys
import threading
from functools import partial
from itertools import pairwise

import torch
from torch import nn

from ddpjob.session import Session
from ddpjob_ranks import slots
from ddpjob_ranks.generation import Generation
from ddpjob_ranks.stop import StopAgreement
from ddpjob_ranks.watch.collectives import Collectives
from ddpjob_session import run
from ddpjob_session.memory import at_exit, periodic
from ddpjob_session.memory.periodic import PeriodicMemory

NOT_KEPT, AT_EXIT, COPIES = "not", "at-exit", "copies"
NUM_STEPS = 8


def num_collectives() -> int:
    """Those that this rank has begun, of all process groups."""
    return sum(Collectives().num_begun(default=default) for default in (True, False))


def main(how: str) -> None:
    """Train in steps after each of which the state is kept, where it is kept by copies."""
    # A question in each step, by any clock.
    run.StopAgreement = partial(StopAgreement, question_seconds=0.0)  # type: ignore[attr-defined,assignment]
    periodic.PAUSE_SECONDS = 0.0  # type: ignore[misc]
    if how == COPIES:
        at_exit.DEVICES = ()  # type: ignore[misc,assignment]
    own = os.memfd_create("own")
    with Session() as session:
        if how != NOT_KEPT:
            node, stores = (os.memfd_create(name) for name in ("node", "stores"))
            session._run._generation = Generation(number=1, pipe=-1, state_memory=node, own_memory=own, stores=stores)
        model = session.replicate(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
        optimizer = torch.optim.AdamW(model.parameters())
        session.track(model=model, optimizer=optimizer)
        counts, kept = [], []
        for _ in session.steps(NUM_STEPS, checkpoint_every_seconds=math.inf):
            memory = session._run._memory
            if isinstance(memory, PeriodicMemory):
                memory.await_copy(threading.TIMEOUT_MAX)
            counts.append(num_collectives())
            kept.append(max(slots.step_of(own, 0), slots.step_of(own, 1)))
            optimizer.zero_grad()
            model(torch.rand(16, 4)).square().mean().backward()
            optimizer.step()
    steps = [after - before for before, after in pairwise(counts)]
    print(f"collectives {steps}, kept after {kept}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
