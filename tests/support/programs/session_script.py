"""A script with a session whose steps draw all kinds of random numbers; FAULT says what its last rank does at FAULT_STEP.

Several faults, separated by commas, are those of successive generations, the second one at twice that step, and so on. With
FAULTY_RANKS they are those of other ranks, one for each generation. CHECKPOINT_EVERY is in steps, instead of a moment.
"""

import math
import os
import random
import re
import signal
import sys
import threading

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import AveragedModel

from ddpjob.session import Session
from ddpjob_ranks.limits import Limits
from ddpjob_ranks.watch import idleness

FAULTS = os.environ.get("FAULT", "").split(",")
NUMBER = min(len(FAULTS), int(os.environ.get("DDPJOB_GENERATION", "1")))
FAULT, FAULT_STEP = FAULTS[NUMBER - 1], NUMBER * int(os.environ.get("FAULT_STEP", "0"))
FAULTY_RANKS = list(filter(None, os.environ.get("FAULTY_RANKS", "").split(",")))
KILLED_WITHIN_STEPS = 8
CHECKPOINT_EVERY = int(os.environ.get("CHECKPOINT_EVERY", "0"))
CHECKPOINT_SECONDS = math.inf if CHECKPOINT_EVERY else 0.01


def go_wrong() -> None:
    """What the environment asks for."""
    if FAULT == "raise":
        raise LookupError("the disk of sample 7 is on fire")
    if FAULT in ("exit 0", "exit 9"):
        sys.exit(int(FAULT[-1]))
    if FAULT == "stop":
        os.kill(os.getpid(), signal.SIGTERM)
    if FAULT.startswith("pod"):
        os.kill(os.getppid(), signal.SIGTERM if FAULT == "pod is stopped" else signal.SIGKILL)
    if FAULT == "killed soon":  # at any point of this step or one of the next
        soon = random.Random(NUMBER).uniform(0, 0.02)  # noqa: S311 - no secret
        threading.Timer(soon, os.kill, (os.getpid(), signal.SIGKILL)).start()
    if FAULT == "hang":
        threading.Event().wait()
    if FAULT == "pause":
        os.kill(os.getpid(), signal.SIGSTOP)
    if FAULT == "hold":  # no other thread of this process runs Python any more
        re.match(r"(a+)+$", "a" * 64 + "b")


def watch_closely() -> None:
    """From here on a standstill ends within seconds; before, a rank of a healthy run may take as long as it wants."""
    session._run._watchdog._limits = Limits(first_step_seconds=4, step_seconds=4)  # type: ignore[union-attr]


idleness.LOSS_SECONDS = 5.0  # so that on a busy machine, too, a rank that lost another one finds out why
with Session(settings={"width": 8}) as session:
    faulty_rank = int(FAULTY_RANKS[NUMBER - 1]) if len(FAULTY_RANKS) >= NUMBER else session.world_size - 1
    torch.manual_seed(session.rank)
    random.seed(session.rank)
    np.random.seed(session.rank)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 1))
    model = session.replicate(net, bucket_cap_mb=0.0001)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = CosineAnnealingLR(optimizer, 60)
    average = AveragedModel(net)
    if FAULT == "exit 0 before the loop" and session.rank == faulty_rank:
        sys.exit(0)
    state = session.track(model=model, optimizer=optimizer, schedule=schedule, average=average)
    for step in session.steps(60, checkpoint_every=CHECKPOINT_EVERY or 7, checkpoint_every_seconds=CHECKPOINT_SECONDS):
        if FAULT in ("hang", "pause", "hold") and step == FAULT_STEP:
            watch_closely()
        if FAULT == "killed soon" and session.rank == faulty_rank and step == FAULT_STEP + KILLED_WITHIN_STEPS:
            threading.Event().wait()
        if session.rank == faulty_rank and step == FAULT_STEP:
            if FAULT == "break":
                break
            go_wrong()
        x = torch.rand(16, 4) + random.random() + float(np.random.rand())  # noqa: S311 - as scripts do
        loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        average.update_parameters(net)
        session.report(loss=loss, rate=schedule.get_last_lr()[0])
    session.print(f"after {state.step} steps")
