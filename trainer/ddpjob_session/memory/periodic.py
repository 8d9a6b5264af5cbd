"""On GPUs: the ranks copy the state into memory every few seconds, so that a restart in place repeats only these.

Unlike a state that is written when a rank ends, the copy does not depend on what still waits in the queue of a GPU: it is made in
the order of the device's own work, as a checkpoint's copy is, and so is that of a step which is done. All ranks make it after the
same step. The first rank of each node copies the state, and each rank what only it knows. A thread writes the copies, and training
waits only for the transfer to the host.
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
    buffers_of,
    check_size,
    oldest_slot,
    own_content,
)
from ddpjob_session.state import State

#: The time between two copies, at least.
PAUSE_SECONDS: Final = 5.0
#: The part of the time that a GPU spends on copies, at most: with a large state the pause is longer.
MAX_SHARE: Final = 0.005
#: One in the memory of `HostCopy`, and one in each slot.
NUM_COPIES: Final = 3
#: The name of what is copied next to the parts of the state, none of which can be called so.
_BUFFERS: Final = ""


class PeriodicMemory(StateMemory):
    """Memory that all ranks write after the same steps, by `copy`."""

    def __init__(self, generation: Generation, state: State, gang: Gang, *, keep_generators: bool) -> None:
        super().__init__(generation, state, gang, keep_generators=keep_generators)
        self._is_first_of_node = os.environ.get(contract.LOCAL_RANK, "0") == "0"
        self._copy = HostCopy(gang.device)
        self._next_at = math.inf  # while a copy is being written, or if none can be

    def hold(self, replicas: Iterable[nn.Module], *, restored: bool) -> None:  # noqa: ARG002 - of MemoryAtExit
        """See StateMemory."""
        for memory in (self._own, *((self._node,) if self._is_first_of_node else ())):
            if not restored:
                slots.empty(memory)
            for slot in STATE_SLOTS:
                if slots.step_of(memory, slot) > self._state.step:  # another rank lacks it
                    slots.mark(memory, slots.NO_STEP, slot)
        try:
            if self._is_first_of_node and not restored:
                check_size(self._state.content(), NUM_COPIES)
            self._next_at = time.monotonic() + PAUSE_SECONDS
        except MemoryError as error:
            self._report_lack(error)

    def can_copy(self) -> bool:
        """See StateMemory."""
        return time.monotonic() >= self._next_at

    def copy(self) -> None:
        """See StateMemory."""
        self._next_at = math.inf
        buffers = buffers_of(self._state) if self._gang.rank == 0 else []
        content = self._state.content() if self._is_first_of_node else {}
        content = self._copy.take({**content, _BUFFERS: buffers})
        drawn = generators.capture(self._gang.device) if self._keep_generators else None
        arguments = (self._state.step, content, drawn)
        threading.Thread(target=self._write, args=arguments, name="state-copy", daemon=True).start()

    def _write(self, step: int, content: dict[str, Any], drawn: generators.Captured | None) -> None:
        """On the thread: write the copy once it is complete."""
        try:
            seconds = self._copy.wait()
            own = own_content(drawn, content.pop(_BUFFERS))
            if self._is_first_of_node:
                slots.write(self._node, step, partial(torch.save, content), slot=oldest_slot(self._node))
            self._write_own(step, own, oldest_slot(self._own), is_final=True, changes_late=False)
        except Exception as error:  # noqa: BLE001 - training goes on, and a restart takes an older copy or a checkpoint
            self._report_lack(error)
            return
        self._next_at = time.monotonic() + max(PAUSE_SECONDS, seconds / MAX_SHARE)
