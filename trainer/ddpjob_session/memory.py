"""What outlives a rank within its pod, so that no step is lost when all ranks start again in place.

A rank whose process ends because it failed, or because another rank did, writes the whole state into memory of its node,
where the ranks of the next generation find it. The state is whole except while a step of the optimizer changes it: then the
rank waits for the end of that step. All ranks take part in each step, so the states of two ranks differ by one step at most,
and the newest of all is taken.

A process that is killed writes nothing any more. So each rank writes what no other rank knows in each step, before the
optimizer changes anything: rank 0 the buffers of the modules (such as the statistics of BatchNorm), and each rank its
generators of random numbers, unless the training draws by step. The last two steps are kept.

On CPUs only: kernels that still wait in the queue of a GPU may change its state at any time after a failure.
"""

import fcntl
import pickle
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from ddpjob_ranks import slots
from ddpjob_ranks.distributed import Gang, as_bytes
from ddpjob_ranks.generation import Generation
from ddpjob_session.state import State, from_bytes

#: Longest wait of a rank that ends for the optimizer's step.
STEP_SECONDS: Final = 5.0


class Memory:
    """The memory of one rank and of its node.

    Args:
        generators: Returns the generators of this rank; None where the training draws by step.
    """

    def __init__(self, generation: Generation, state: State, gang: Gang, generators: Callable[[], Any]) -> None:
        self._node = generation.state_memory
        self._own = generation.own_memory
        self._state = state
        self._gang = gang
        self._generators = generators
        self._whole = threading.Lock()
        self._in_optimizer = False

    # For the next generation.

    def hold(self, *, restored: bool) -> None:
        """Keep the state from now on. All ranks have `restored` what the last generation had kept, or nothing."""
        slots.empty(self._node)
        if not restored:
            slots.empty(self._own)  # it may be of later steps than a checkpoint
        for part in self._state.parts.values():
            if isinstance(part, torch.optim.Optimizer):
                part.register_step_pre_hook(lambda *_: self._begin_change())

    def step_done(self) -> None:
        """The step is counted, and the state whole."""
        if self._in_optimizer:
            self._in_optimizer = False
            self._whole.release()

    def save(self) -> None:
        """Write the state, from whichever thread, once it is whole. The process ends after that."""
        try:
            in_step = self._in_optimizer and threading.current_thread() is threading.main_thread()
            if not in_step and self._whole.acquire(timeout=STEP_SECONDS):
                fcntl.lockf(self._node, fcntl.LOCK_EX)  # other ranks of the node write, too
                if slots.step_of(self._node) < self._state.step:
                    slots.write(self._node, self._state.step, partial(torch.save, self._state.content()))
                fcntl.lockf(self._node, fcntl.LOCK_UN)
        except Exception as error:  # noqa: BLE001 - the process ends anyway, and an earlier state is somewhere
            print(f"rank {self._gang.rank}: its state is not kept in memory: {error}", file=sys.stderr, flush=True)

    def _begin_change(self) -> None:
        if self._in_optimizer:
            return
        self._whole.acquire()
        self._in_optimizer = True
        step = self._state.step + 1
        buffers = _packed(_buffers(self._state)) if self._gang.rank == 0 else b""
        slots.write(self._own, step, partial(pickle.dump, (self._generators(), buffers)), slot=step % 2)

    def _knows(self, step: int) -> bool:
        """Whether this rank has what only it knows of the step. It may have been killed before it wrote that."""
        needed = self._gang.rank == 0 or self._generators() is not None
        return not needed or slots.step_of(self._own, step % 2) == step

    # From the last generation.

    def restore(self) -> bool:
        """Load the newest state that any rank has kept, on all ranks; False if there is none."""
        gang, state = self._gang, self._state
        steps = gang.all_gather(slots.step_of(self._node))
        step = max(steps)
        if not all(gang.all_gather(step != slots.NO_STEP and self._knows(step))):
            return False
        source = steps.index(step)
        content = gang.broadcast_bytes(slots.read(self._node) if gang.rank == source else None, source=source)
        assert content is not None
        state.load(from_bytes(content))
        own = slots.step_of(self._own, step % 2) == step
        generators, buffers = pickle.loads(slots.read(self._own, step % 2)) if own else (None, b"")
        if packed := gang.broadcast_bytes(bytearray(buffers) if gang.rank == 0 else None):
            _unpack(_buffers(state), packed)
        found = gang.all_gather(generators)
        state.random = None if found[0] is None else found
        return True


def _buffers(state: State) -> list[torch.Tensor]:
    return [buffer for part in state.parts.values() if isinstance(part, nn.Module) for buffer in part.buffers()]


def _packed(buffers: list[torch.Tensor]) -> bytes:
    return torch.cat([as_bytes(buffer) for buffer in buffers]).numpy().tobytes() if buffers else b""


@torch.no_grad()
def _unpack(buffers: list[torch.Tensor], packed: bytes) -> None:
    pieces = torch.split(torch.frombuffer(bytearray(packed), dtype=torch.uint8), [buffer.nbytes for buffer in buffers])
    for buffer, piece in zip(buffers, pieces, strict=True):
        buffer.copy_(piece.clone().view(buffer.dtype).view_as(buffer))
