"""A script with a session whose steps draw all kinds of random numbers; FAULT says what its last rank does at FAULT_STEP.

Several faults, separated by commas, are those of successive generations, the second one at twice that step, and so on.
"""

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

FAULTS = os.environ.get("FAULT", "").split(",")
NUMBER = min(len(FAULTS), int(os.environ.get("DDPJOB_GENERATION", "1")))
FAULT, FAULT_STEP = FAULTS[NUMBER - 1], NUMBER * int(os.environ.get("FAULT_STEP", "0"))
STEP_TIMEOUT = 4 if "hang" in FAULTS else 300


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
    if FAULT == "hang":
        threading.Event().wait()
    if FAULT == "pause":
        os.kill(os.getpid(), signal.SIGSTOP)
    if FAULT == "hold":  # no other thread of this process runs Python any more
        re.match(r"(a+)+$", "a" * 64 + "b")


with Session(settings={"width": 8}, step_timeout_seconds=STEP_TIMEOUT) as session:
    torch.manual_seed(session.rank)
    random.seed(session.rank)
    np.random.seed(session.rank)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 1))
    model = session.replicate(net, bucket_cap_mb=0.0001)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = CosineAnnealingLR(optimizer, 60)
    average = AveragedModel(net)
    if FAULT == "exit 0 before the loop" and session.rank == session.world_size - 1:
        sys.exit(0)
    state = session.track(model=model, optimizer=optimizer, schedule=schedule, average=average)
    for step in session.steps(60, checkpoint_every=7, checkpoint_every_seconds=0.01):
        if session.rank == session.world_size - 1 and step == FAULT_STEP:
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
