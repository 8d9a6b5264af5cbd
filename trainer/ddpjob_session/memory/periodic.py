"""On GPUs: the ranks copy the state into memory every few seconds, so that a restart in place repeats only these.

A rank that ends cannot write its state, as one on a CPU does: kernels that wait in the queue of the GPU may still change it. A copy
between two steps is made in the order of that queue, as a checkpoint's copy is, so it holds the state after exactly these steps. All
ranks begin it after the same step. The first rank of each node copies the state, and each rank what only it knows. A thread writes the
copies, and training waits only for the transfer to the host, and in the first copy for the allocation of the memory.
"""

import math
import os
import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from ddpjob_ranks import contract, slots
from ddpjob_ranks.distributed import Gang
from ddpjob_ranks.generation import Generation
from ddpjob_session import generators
from ddpjob_session.checkpoints.snapshot import HostCopy
from ddpjob_session.memory.state_memory import (
    STATE_SLOTS,
    StateMemory,
    check_size,
    kept_steps,
    oldest_slot,
    own_content,
)
from ddpjob_session.state import State

#: The time between two copies, at least.
PAUSE_SECONDS: Final = 5.0
#: The part of the time that a GPU spends on copies, at most: with a large state the pause is longer.
MAX_SHARE: Final = 0.005
#: Longest wait for a copy once the training has stopped.
LAST_COPY_SECONDS: Final = 3.0
#: How many times its size the state takes in two `HostCopy`, this one and that of checkpoints.
NUM_IN_TRANSFER: Final = 2


class PeriodicMemory(StateMemory):
    """Memory that all ranks write after the same steps, which `begin_copy` begins."""

    def __init__(self, generation: Generation, state: State, gang: Gang, host_copy: HostCopy) -> None:
        super().__init__(generation, state, gang)
        self._is_first_of_node = os.environ.get(contract.LOCAL_RANK, "0") == "0"
        self._host_copy = host_copy
        self._size_is_checked = False
        self._next_at = math.inf  # before `hold`, while a copy is being written, and once one could not be
        self._writing: threading.Thread | None = None

    def hold(self, replicas: Iterable[nn.Module], *, restored: bool) -> None:  # noqa: ARG002 - of MemoryAtExit
        """See StateMemory."""
        self._forget(restored=restored, node=self._is_first_of_node)
        self._next_at = time.monotonic() + PAUSE_SECONDS

    def is_due(self) -> bool:
        """See StateMemory."""
        return time.monotonic() >= self._next_at

    def begin_copy(self) -> None:
        """See StateMemory."""
        self._next_at = math.inf
        try:
            # Restored ranks gather the random numbers of all from what each of them keeps.
            content = {**self._state.content(), "random": None} if self._is_first_of_node else {}
            if self._is_first_of_node and not self._size_is_checked:
                check_size(content, NUM_IN_TRANSFER + len(STATE_SLOTS) - len(kept_steps(self._node)))
                self._size_is_checked = True
            drawn = self._drawn()
            copied = self._host_copy.take({"state": content, "buffers": self._own_buffers()})
        except Exception as error:  # noqa: BLE001 - training goes on without copies
            self._report_lack(error)
            return
        # A daemon, since a rank that a launcher has started ends by os._exit.
        self._writing = threading.Thread(
            target=self._write, args=(self._state.step, copied, drawn), name="state-copy", daemon=True
        )
        self._writing.start()

    def keep_last_step(self) -> None:
        """See StateMemory."""
        self.await_copy(LAST_COPY_SECONDS)
        if self._next_at < math.inf:  # that copy was written
            self.begin_copy()
            self.await_copy(LAST_COPY_SECONDS)

    def await_copy(self, seconds: float) -> None:
        """Wait until the copy that was begun last is written or could not be, at most for so long."""
        if self._writing is not None:
            self._writing.join(seconds)

    def _write(self, step: int, copied: dict[str, Any], drawn: generators.Captured | None) -> None:
        """On the thread: write the copy once it is complete."""
        try:
            seconds = self._host_copy.wait()
            if self._is_first_of_node:
                self._state.check_loadable(copied["state"])  # here: of thousands of tensors it takes tens of ms
                write = partial(torch.save, copied["state"])
                slots.write(self._node, step, write, slot=oldest_slot(self._node))
            self._write_own(step, own_content(drawn, copied["buffers"]), oldest_slot(self._own))
        except Exception as error:  # noqa: BLE001 - training goes on, and a restart takes an older copy or a checkpoint
            self._report_lack(error)
            return
        self._next_at = time.monotonic() + max(PAUSE_SECONDS, seconds / MAX_SHARE)
