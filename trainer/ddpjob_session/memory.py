"""What outlives a rank within its pod, so that no step is lost when all ranks start again in place.

A rank whose process ends because it failed, or because another rank did, writes the whole state into memory of its node,
where the ranks of the next generation find it. The state is whole except while a step of the optimizer changes it: then the
rank waits for the end of that step. All ranks take part in each step, so the states of two ranks differ by one step at most,
and the newest of all is taken. Parts that are neither modules nor optimizers, such as samplers, may change at any time: of
these the rank keeps a copy from the end of the last step.

A process that is killed writes nothing any more. So each rank writes in each step what no other rank knows: rank 0 the
buffers of the modules (such as the statistics of BatchNorm), and each rank its generators of random numbers, unless the
training draws by step. It writes that before it sends its gradients, without which no other rank can complete the step,
and again at the end of the step if it has changed since. The last two steps are kept. Where it changes after the forward pass,
as the copies of statistics in an AveragedModel do, a rank that is killed before the end of a step that others have completed
takes it along, and all ranks continue from the newest checkpoint.

On CPUs only: kernels that still wait in the queue of a GPU may change its state at any time after a failure.
"""

import copy
import fcntl
import pickle
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.optim.swa_utils import AveragedModel
from torch.utils._pytree import tree_leaves  # of torch.distributed.checkpoint, too

from ddpjob_ranks import slots
from ddpjob_ranks.distributed import Gang, as_bytes
from ddpjob_ranks.generation import Generation
from ddpjob_ranks.host_memory import available_bytes
from ddpjob_session import generators
from ddpjob_session.state import State, from_bytes

#: The slots of a node's memory that hold the state. A newer one, while it is written, leaves the older one whole, since its writer
#: may be killed. Ranks differ by one step at most, so that two are enough.
STATE_SLOTS: Final = (0, 1)
#: Longest wait of a rank that ends for the optimizer's step.
STEP_SECONDS: Final = 5.0
#: What a state that is written into memory must leave free, for what the processes need until they have ended.
MARGIN_BYTES: Final = 64 * 2**20


class Memory:
    """The memory of one rank and of its node.

    Args:
        keep_generators: Whether the random numbers of a step depend on those that were drawn before.
    """

    def __init__(self, generation: Generation, state: State, gang: Gang, *, keep_generators: bool) -> None:
        self._node = generation.state_memory
        self._own = generation.own_memory
        self._state = state
        self._gang = gang
        self._keep_generators = keep_generators
        self._step = slots.NO_STEP  # of the state while it is whole, which it is once it is loaded
        self._others: dict[str, Any] = {}
        """The state of the parts that are neither modules nor optimizers, after that step."""
        self._whole = threading.Lock()
        self._in_optimizer = False
        self._written: tuple[int, bytes] | None = None
        self._changes_late: bool | None = None
        """Whether what only this rank knows has changed in some step after it was first written; None before the first step."""

    # For the next generation.

    def hold(self, replicas: Iterable[nn.Module], *, restored: bool) -> None:
        """Keep the state from now on. All ranks have `restored` what the last generation had kept, or nothing.

        To be called before a barrier, so that no rank of the node has kept anything new yet.
        """
        self._keep_others()
        self._step = self._state.step
        with self._whole:  # which a thread that has kept the state, since the generation ends, does not release
            slots.empty(self._node)
            if not restored:
                slots.empty(self._own)  # it may be of later steps than a checkpoint
        # Of every optimizer, since one without state, such as plain SGD, may be no part.
        register_optimizer_step_pre_hook(lambda *_: self._begin_change())
        for replica in replicas:  # one rank alone needs none, and a hook would be compiled with its model
            if isinstance(replica, DistributedDataParallel):
                replica.register_forward_hook(lambda module, *_: self._forward_done(module))

    def step_done(self) -> None:
        """The step is counted, and the state whole."""
        current = (self._state.step, self._own_content())
        has_changed = self._written not in (None, current)
        is_known = self._written == current and self._changes_late is False
        self._changes_late = bool(self._changes_late) or has_changed
        if not is_known:
            self._write_own(*current, is_final=True)
        self._written = None
        self._begin_change()  # a step may have called no optimizer, and what follows belongs together, too
        self._keep_others()
        self._step = self._state.step
        self._in_optimizer = False
        self._whole.release()

    def save(self) -> None:
        """Write the state, from whichever thread, once it is whole. The process ends after that."""
        if self._step == slots.NO_STEP:
            return
        try:
            self._wait_for_step()
            fcntl.lockf(self._node, fcntl.LOCK_EX)  # other ranks of the node write, too
            (_, oldest), (newest_step, _) = sorted(self._kept())
            if newest_step < self._step:
                content = {**self._state.content(), **self._others, "step": self._step}
                _check_size(content)
                slots.write(self._node, self._step, partial(torch.save, content), slot=oldest)
            fcntl.lockf(self._node, fcntl.LOCK_UN)
        except Exception as error:  # noqa: BLE001 - the process ends anyway, and another rank may have kept the state
            print(f"rank {self._gang.rank}: its state is not kept in memory: {error}", file=sys.stderr, flush=True)

    def _kept(self) -> list[tuple[int, int]]:
        """The step of each slot for the state, and the slot."""
        return [(slots.step_of(self._node, slot), slot) for slot in STATE_SLOTS]

    def _wait_for_step(self) -> None:
        in_step = self._in_optimizer and threading.current_thread() is threading.main_thread()
        if in_step or not self._whole.acquire(timeout=STEP_SECONDS):
            raise TimeoutError(f"step {self._step + 1} has changed it and has not ended")

    def _keep_others(self) -> None:
        found = {
            name: part.state_dict()
            for name, part in self._state.parts.items()
            if not isinstance(part, nn.Module | torch.optim.Optimizer)
        }
        tensors = {id(leaf): leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)}
        self._others = copy.deepcopy(found, tensors)  # tensors may be large, and are not copied

    def _begin_change(self) -> None:
        if not self._in_optimizer:
            self._whole.acquire()
            self._in_optimizer = True

    def _forward_done(self, replica: nn.Module) -> None:
        if replica.training:
            self._write_own(self._state.step + 1, self._own_content(), is_final=self._changes_late is False)

    def _own_content(self) -> bytes:
        drawn = generators.capture(self._gang.device) if self._keep_generators else None
        buffers = _packed(_buffers(self._state)) if self._gang.rank == 0 else b""
        return pickle.dumps((drawn, buffers))

    def _write_own(self, step: int, content: bytes, *, is_final: bool) -> None:
        self._written = (step, content)
        flags = bytes([is_final, self._changes_late is not False])
        slots.write(self._own, step, lambda file: file.write(flags + content), slot=step % 2)

    # From the last generation.

    def restore(self, moved: Callable[[], None]) -> bool:
        """Load the newest state that any rank has kept, on all ranks; False if there is none.

        `moved` is called after each piece of it that was sent.
        """
        gang, state = self._gang, self._state
        newest_step, newest = max(self._kept())
        steps = gang.all_gather(newest_step)
        step = max(steps)
        if step == slots.NO_STEP:
            return False
        own = slots.read(self._own, step % 2) if slots.step_of(self._own, step % 2) == step else None
        is_known = not self._needs_own or (own is not None and bool(own[0]))
        if not all(gang.all_gather(is_known)):
            return False
        source = steps.index(step)
        content = gang.broadcast_bytes(
            slots.read(self._node, newest) if gang.rank == source else None, moved, source=source
        )
        assert content is not None
        state.load(from_bytes(content))
        # Only processes of this pod can write this memory.
        drawn, buffers = pickle.loads(own[2:]) if own else (None, b"")  # noqa: S301
        if packed := gang.broadcast_bytes(bytearray(buffers) if gang.rank == 0 else None):
            _unpack(_buffers(state), packed)
        state.random = gang.all_gather(drawn and generators.state(drawn)) if self._keep_generators else None
        self._changes_late = bool(own[1]) if own else None
        self._step = step
        return True

    @property
    def _needs_own(self) -> bool:
        """Whether this rank knows something that no other does."""
        return self._keep_generators or (self._gang.rank == 0 and bool(_buffers(self._state)))


def _check_size(content: object) -> None:
    """Check that a copy of the tensors fits, since the kernel would otherwise kill the pod.

    Raises:
        MemoryError: it does not.
    """
    tensors = [leaf.untyped_storage() for leaf in tree_leaves(content) if isinstance(leaf, torch.Tensor)]
    needed = sum({storage.data_ptr(): storage.nbytes() for storage in tensors}.values())
    left = available_bytes() - MARGIN_BYTES
    if needed > left:
        raise MemoryError(
            f"it needs {needed / 2**20:.0f} MiB, and the memory limit of the pod or the host leaves"
            f" {max(0, left) / 2**20:.0f} MiB; raise resources.limits.memory to lose no step"
        )


def _buffers(state: State) -> list[torch.Tensor]:
    """Those that may differ between ranks, each one once."""
    found = {}
    for part in state.parts.values():
        for name, buffer in part.named_buffers() if isinstance(part, nn.Module) else ():
            if not (isinstance(part, AveragedModel) and name == "n_averaged"):  # which counts steps
                found[id(buffer)] = buffer
    return list(found.values())


def _packed(buffers: list[torch.Tensor]) -> bytes:
    return torch.cat([as_bytes(buffer) for buffer in buffers]).numpy().tobytes() if buffers else b""


@torch.no_grad()
def _unpack(buffers: list[torch.Tensor], packed: bytes | memoryview) -> None:
    pieces = torch.split(torch.frombuffer(bytearray(packed), dtype=torch.uint8), [buffer.nbytes for buffer in buffers])
    for buffer, piece in zip(buffers, pieces, strict=True):
        buffer.copy_(piece.clone().view(buffer.dtype).view_as(buffer))
