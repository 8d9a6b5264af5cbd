"""`python -m ddpjob_measure.session_cost`: what a session adds to each step of a script, with or without copies of its state.

Rank 0 prints a line. The steps are those of a small network, which a host needs longer to queue than a GPU to compute.
"""

import os
import sys
import time
from statistics import median

import torch
from torch import nn

from ddpjob.session import Session
from ddpjob_measure import killed
from ddpjob_ranks import contract
from ddpjob_ranks.launch import command, identity

#: Begins the line: microseconds of a step without a session, and with one.
PREFIX = "session-cost "
NUM_STEPS, NUM_BLOCKS = 100, 7


def main() -> int:
    """Run the launcher where ranks can start again in place, or else the rank; returns the exit code."""
    if identity.in_place_restarts(os.environ) and contract.DDPJOB_GENERATION not in os.environ:
        return command.start(["-m", __spec__.name], os.environ)
    killed.copy_often()
    with Session() as session:
        on_gpu = session.device.type == "cuda"
        width = 1024 if on_gpu else 64
        model = session.replicate(nn.Sequential(*(nn.Linear(width, width) for _ in range(4))))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        session.track(model=model, optimizer=optimizer)
        inputs_BW = torch.rand(8, width, device=session.device)  # noqa: N806 - a shape

        def train() -> torch.Tensor:
            loss: torch.Tensor = model(inputs_BW).square().mean()
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            return loss.detach()

        def now() -> float:
            if on_gpu:
                torch.cuda.synchronize()
            return time.perf_counter()

        # In turn: a step of the session that has as many steps of the script, and as many steps of the session.
        bare, within, began = list[float](), list[float](), 0.0
        for step in session.steps(NUM_BLOCKS * (NUM_STEPS + 1) + 1):
            if step % (NUM_STEPS + 1) == 0:
                within.append(now() - began)
                began = now()
                for _ in range(NUM_STEPS):
                    train()
                bare.append(now() - began)
                began = now()
            else:
                session.report(loss=train())
        found = [1e6 * median(seconds[1:]) / NUM_STEPS for seconds in (bare, within)]
        session.print(PREFIX + " ".join(f"{value:.1f}" for value in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
