"""Ranks that start again wait until the GPU has the memory of those that ended.

The driver frees the memory of a process once the last process that has its descriptors has ended, which may be a data worker
that the launcher has just killed.
"""

import re
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
#: What CUDA says of a GPU that one process at a time may use, as long as the last one has not ended.
BUSY: Final = "busy or unavailable"
#: Time between two looks.
LOOK_SECONDS: Final = 0.05
#: torch's own allocator of host memory; a CUDA call, also within NCCL ("Cuda failure 2 'out of memory'"); cuBLAS.
OUT_OF_MEMORY: Final = re.compile(
    r"can't allocate memory|(Cuda failure|CUDA error).*out of memory|CUBLAS_STATUS_ALLOC_FAILED", re.DOTALL
)


def use(device: torch.device, mine: Generation | None, cuda: ModuleType = torch.cuda, clock: ModuleType = time) -> None:
    """Make a GPU the current one of CUDA. A rank that starts again first waits until as much memory is free there as when it started first.

    `mine` is the generation of the rank, None where no rank starts again.
    """
    if device.type != "cuda":
        return
    if mine is not None:
        _wait_until_free(device, mine.own_memory, cuda, clock)
    cuda.set_device(device)


def _wait_until_free(device: torch.device, memory: int, cuda: ModuleType, clock: ModuleType) -> None:
    at_first = slots.step_of(memory, FREE_MEMORY_SLOT)
    free = _free(device, cuda)
    if at_first == slots.NO_STEP:
        slots.mark(memory, free, FREE_MEMORY_SLOT)
        return
    began = clock.monotonic()
    while free < ENOUGH * at_first and clock.monotonic() - began < WAIT_SECONDS:
        clock.sleep(LOOK_SECONDS)
        free = _free(device, cuda)
    if free < ENOUGH * at_first:
        print(
            f"ddpjob: {free / 2**30:.1f} GiB of {device} are free, and {at_first / 2**30:.1f} GiB were when the ranks started"
            f" first; another process has kept the rest for {WAIT_SECONDS:.0f} s: nvidia-smi on this node shows which",
            file=sys.stderr,
            flush=True,
        )


def _free(device: torch.device, cuda: ModuleType) -> int:
    """Bytes that are free; 0 where this process cannot have its context yet, which the first look creates."""
    try:
        return int(cuda.mem_get_info(device)[0])
    except RuntimeError as error:
        if not is_out_of_memory(error) and BUSY not in str(error):
            raise
        return 0


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this rank's host or GPU has no memory left, whoever asked for it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None
