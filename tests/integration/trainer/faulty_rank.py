"""A trainer with one rank that goes wrong: FAULT says how, FAULTY_RANK which; the fault comes at step FAULT_STEP."""

import os
import signal
import sys

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ddpjob_trainer import __main__, launch, launcher
from ddpjob_trainer.data import Feed

BATCH = Feed.batch


def batch_of_a_faulty_rank(feed: Feed, step: int) -> object:
    """Feed.batch, with the fault at its step."""
    if os.environ["FAULTY_RANK"] == str(feed.rank) and step == int(os.environ["FAULT_STEP"]):
        if os.environ["FAULT"] == "raise":
            raise LookupError("the disk of sample 7 is on fire")
        if os.environ["FAULT"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    return BATCH(feed, step)


def step_of_a_drifting_rank(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """After each update, one parameter is off by the smallest possible amount."""
    if os.environ["FAULTY_RANK"] == os.environ["RANK"]:
        weight = optimizer.param_groups[0]["params"][1].data.view(torch.int32)
        weight.view(-1)[5] += 1


if __name__ == "__main__":
    if isinstance(place := launch.resolve(os.environ), launch.Node):
        sys.exit(launcher.run(place, [sys.executable, *sys.argv], os.environ))
    Feed.batch = batch_of_a_faulty_rank  # type: ignore[method-assign, assignment]  # that is the fault
    if os.environ["FAULT"] == "drift":
        register_optimizer_step_post_hook(step_of_a_drifting_rank)
    sys.exit(__main__.main(sys.argv[1:]))
