"""A trainer with one rank that gets SIGTERM at a chosen point: PREEMPTED_AT, PREEMPTED_RANK, and PREEMPTED_STEP or later.

PREEMPTED_BY is the number of another signal. At the point "outside" the test sends the signals: the last rank waits there
until the file OPENED exists.

The rank sends the signal to itself, so it comes at that very point. Rank 0 alone writes checkpoints.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ddpjob_ranks.stop import StopAgreement
from ddpjob_session import run
from ddpjob_session.checkpoints.folder import CheckpointFolder
from ddpjob_session.checkpoints.writer import CheckpointWriter
from ddpjob_trainer import loop
from ddpjob_trainer.data import Feed
from ddpjob_trainer.state import TrainingState

#: Where the signal can come, and what is replaced for it.
POINTS: dict[str, tuple[Any, str]] = {
    "set-up": (run, "StopAgreement"),  # the handler is there, training has not begun
    "data": (Feed, "batch"),
    "forward": (loop.Training, "take_step"),
    "backward": (torch.autograd, "backward"),
    "agreement": (StopAgreement, "reached"),
    "copy": (TrainingState, "content"),
    "checkpoint": (CheckpointWriter, "save"),
    "write": (CheckpointFolder, "save"),  # on the writer's thread
    "evaluation": (loop, "evaluate"),
}
RANK_0_ONLY = {"copy", "write"}


def preempting(original: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with the signal at its beginning."""

    def replaced(*arguments: Any, **named: Any) -> Any:
        due = TRAINED["begun"] and TRAINED["steps"] >= int(os.environ["PREEMPTED_STEP"])
        if (due or os.environ["PREEMPTED_AT"] == "set-up") and not TRAINED["preempted"]:
            TRAINED["preempted"] = True
            print("SIGTERM now", flush=True)
            os.kill(os.getpid(), int(os.environ.get("PREEMPTED_BY", signal.SIGTERM)))
        return original(*arguments, **named)

    return replaced


#: Of this process. Set-up computes a batch and a backward pass as well: `begun` is true once training has begun.
TRAINED = {"begun": False, "steps": 0, "preempted": False}


def beginning(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Training.train`, which also notes that it has begun."""

    def replaced(*arguments: Any, **named: Any) -> Any:
        TRAINED["begun"] = True
        return original(*arguments, **named)

    return replaced


def counting(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Training.take_step`, which also counts the steps."""

    def replaced(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        TRAINED["steps"] += 1
        return result

    return replaced


def waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Feed.batch`, which waits at its step for the test."""

    def replaced(*arguments: Any) -> Any:
        if TRAINED["begun"] and TRAINED["steps"] == int(os.environ["PREEMPTED_STEP"]):
            print("SIGTERM now", flush=True)
            while not Path(os.environ["OPENED"]).exists():
                time.sleep(0.005)
        return original(*arguments)

    return replaced


def arrange() -> None:
    """Set this rank up as the environment says; to be called before it trains."""
    loop.Training.train = beginning(loop.Training.train)  # type: ignore[method-assign]
    loop.Training.take_step = counting(loop.Training.take_step)  # type: ignore[method-assign]
    if os.environ["PREEMPTED_AT"] == "outside":
        if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
            Feed.batch = waiting(Feed.batch)  # type: ignore[method-assign]
    elif os.environ["PREEMPTED_RANK"] == os.environ["RANK"]:
        owner, name = POINTS[os.environ["PREEMPTED_AT"]]
        setattr(owner, name, preempting(getattr(owner, name)))
