"""Runs a script whose rank KILLED_RANK kills itself in its KILLED_STEP-th step; without these variables it runs unchanged."""

import os
import runpy
import signal
import sys

from torch.optim.optimizer import register_optimizer_step_pre_hook

STEPS: list[None] = []


def count(*_: object) -> None:
    """Before each optimizer step of this process."""
    STEPS.append(None)
    if os.environ.get("KILLED_RANK") == os.environ["RANK"] and len(STEPS) == int(os.environ["KILLED_STEP"]):
        os.kill(os.getpid(), signal.SIGKILL)


register_optimizer_step_pre_hook(count)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
