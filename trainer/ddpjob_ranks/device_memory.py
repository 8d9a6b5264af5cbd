"""Ranks that start again wait until the GPU has the memory of those that ended.

The driver frees the memory of a process once the last process that has its descriptors has ended, which may be a data worker
that the launcher has just killed.
"""

import sys
import time
from types import ModuleType
from typing import Final

import torch

from ddpjob_ranks import slots
from ddpjob_ranks.generation import FREE_MEMORY_SLOT, Generation

#: The wait ends after this time, and the rank tries with what is there. Assumption, not measured on a GPU.
WAIT_SECONDS: Final = 10.0
#: The share of what was free at the first start that is enough. Contexts of other processes differ by some hundred MB.
#: Assumption, not measured on a GPU.
ENOUGH: Final = 0.95
#: Time between two looks.
LOOK_SECONDS: Final = 0.05


def wait_until_free(
    device: torch.device, mine: Generation | None, cuda: ModuleType = torch.cuda, clock: ModuleType = time
) -> None:
    """Wait, before the first allocation of a rank, until as much memory of its GPU is free as when it started first.

    `mine` is the generation of the rank, None where no rank starts again.
    """
    if mine is None or device.type != "cuda":
        return
    free, _ = cuda.mem_get_info(device)
    at_first = slots.step_of(mine.own_memory, FREE_MEMORY_SLOT)
    if at_first == slots.NO_STEP:
        slots.mark(mine.own_memory, free, FREE_MEMORY_SLOT)
        return
    began = clock.monotonic()
    while free < ENOUGH * at_first and clock.monotonic() - began < WAIT_SECONDS:
        clock.sleep(LOOK_SECONDS)
        free, _ = cuda.mem_get_info(device)
    if free < ENOUGH * at_first:
        print(
            f"ddpjob: {free / 2**30:.1f} GiB of {device} are free, and {at_first / 2**30:.1f} GiB were when the ranks started"
            f" first; another process has kept the rest for {WAIT_SECONDS:.0f} s: nvidia-smi on this node shows which",
            file=sys.stderr,
            flush=True,
        )
