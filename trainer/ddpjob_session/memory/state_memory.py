"""Memory of a pod that outlives its ranks, so that a restart in place needs no checkpoint: its format, and how it is read again.

A node's ranks share the memory for the state. What only one rank knows is in memory of its own: the buffers of the modules (such as
the statistics of BatchNorm) of rank 0, and the generators of random numbers of each rank, unless the training draws by step.

A state can be taken if each rank that knows something of its own has kept that for the same step. For example, node 0 has kept the states
after steps 8 and 9, and rank 1 its generators after steps 7 and 8: then all ranks continue with the state after step 8.
"""

import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Final

import torch
from torch import nn
from torch._utils import _flatten_dense_tensors  # of torch.nn.parallel, too
from torch.optim.swa_utils import AveragedModel

from ddpjob_ranks import slots
from ddpjob_ranks.distributed import Gang, as_bytes
from ddpjob_ranks.generation import Generation
from ddpjob_ranks.host_memory import available_bytes
from ddpjob_session import generators, shared_state
from ddpjob_session.checkpoints.snapshot import tensors_in
from ddpjob_session.state import State

#: The slots of a node's memory that hold the state, and of a rank's memory that hold what only this rank knows. A newer one, while it is
#: written, leaves the older one whole, since its writer may be killed.
STATE_SLOTS: Final = (0, 1)
#: What a state that is written into memory must leave free, for what the processes need until they have ended.
MARGIN_BYTES: Final = 64 * 2**20


class StateMemory:
    """The memory of one rank and of its node. It is only read here: subclasses write it, each at other moments.

    Attributes:
        has_last_step: Whether the state that was restored is that of the last completed step, as far as the ranks know.
    """

    def __init__(self, generation: Generation, state: State, gang: Gang) -> None:
        self._node = generation.state_memory
        self._own = generation.own_memory
        self._state = state
        self._gang = gang
        self.has_last_step = False

    def hold(self, replicas: Iterable[nn.Module], *, restored: bool) -> None:
        """Keep the state from now on. All ranks have `restored` what the last generation had kept, or nothing.

        To be called before a barrier, so that no rank of the node has kept anything new yet.
        """

    def step_done(self) -> None:
        """The step is counted, and the state whole."""

    def leave_out(self, why: str) -> None:
        """The state is not whole between steps. Copies wait for a step after which it is."""

    def is_due(self) -> bool:
        """Whether this rank is ready to copy the state again. Once all ranks are, they call `begin_copy` after the same step."""
        return False

    def begin_copy(self) -> None:
        """Begin to copy the state after the steps done. An error is reported, and training goes on."""

    def keep_last_step(self) -> None:
        """Keep the state of a training that has stopped on all ranks, where `Generation.before_exit` does not do so."""

    def find(self, moved: Callable[[], None], *, at_least: int = 0) -> dict[str, Any] | None:
        """The newest state that any rank has kept, on all ranks, for `load`; None if there is none.

        `moved` is called after each piece of it that was sent. The states of steps before rank 0's `at_least` do not count.
        """
        gang = self._gang
        kept, own = (kept_steps(memory) for memory in (self._node, self._own))
        own = {step: slot for step, slot in own.items() if slots.read(self._own, slot)[0]}
        offers = gang.all_gather((set(kept), set(own) if self._needs_own else None, at_least))
        step = newest_step([(states, known) for states, known, _ in offers])
        if step is None or step < offers[0][2]:
            return None
        source = next(rank for rank, (states, *_) in enumerate(offers) if step in states)
        payload = slots.read(self._node, kept[step]) if gang.rank == source else None
        loaded = shared_state.receive(gang, payload, moved, source=source)
        assert loaded is not None
        self._mine = slots.read(self._own, own[step]) if step in own else None
        self._is_newest = step == max(max(states, default=0) for states, *_ in offers)
        return loaded

    def load(self, content: dict[str, Any]) -> None:
        """Load what `find` has returned, on all ranks."""
        gang, state, mine = self._gang, self._state, self._mine
        state.load(content)
        # Only processes of this pod can write this memory.
        drawn, buffers = pickle.loads(mine[2:]) if mine else (None, b"")  # noqa: S301
        if packed := gang.broadcast_bytes(bytearray(buffers) if gang.rank == 0 else None):
            _unpack(buffers_of(state), packed)
        state.random = gang.all_gather(drawn and generators.state(drawn)) if state.keeps_generators else None
        self._restored(is_newest=self._is_newest, changes_late=None if mine is None else bool(mine[1]))

    def _restored(self, *, is_newest: bool, changes_late: bool | None) -> None:
        """The state is restored: the newest that any rank has kept, or an older one. The rest is what `_write_own` was told."""

    def _forget(self, *, restored: bool, node: bool) -> None:
        """Forget what was kept, unless it is `restored`: then what belongs to later steps. `node`: also the state."""
        if node and not restored:
            slots.empty(self._node)
        newest = self._state.step if restored else slots.NO_STEP  # some rank lacks what belongs to a later one
        # Not the whole memory of the rank, which holds more than its state: the next generation reads that.
        for memory in (self._own, *((self._node,) if node else ())):
            for slot in STATE_SLOTS:
                if slots.step_of(memory, slot) > newest:
                    slots.mark(memory, slots.NO_STEP, slot)

    def _write_own(
        self, step: int, content: bytes, slot: int, *, is_final: bool = True, changes_late: bool = False
    ) -> None:
        """Keep what only this rank knows after the step; if it is not `is_final`, the step may still change it."""
        slots.write(self._own, step, bytes([is_final, changes_late]) + content, slot)

    def _drawn(self) -> generators.Captured | None:
        """The generators of this rank, unless the training draws by step."""
        return generators.capture(self._gang.device, self._state.own) if self._state.keeps_generators else None

    def _own_buffers(self) -> list[torch.Tensor]:
        """Those of rank 0 count, where ranks differ."""
        return buffers_of(self._state) if self._gang.rank == 0 else []

    @property
    def _needs_own(self) -> bool:
        """Whether this rank knows something that no other does."""
        return self._state.keeps_generators or bool(self._own_buffers())

    def _report_lack(self, error: Exception) -> None:
        print(f"rank {self._gang.rank}: its state is not kept in memory: {error}", file=sys.stderr, flush=True)


def newest_step(offers: Sequence[tuple[set[int], set[int] | None]]) -> int | None:
    """The newest step whose state can be taken; None if there is none.

    Args:
        offers: Of each rank, the steps whose states its node has kept, and those after which the rank has kept what only it knows,
            or None if it knows nothing of its own.
    """
    kept = set[int]().union(*(states for states, _ in offers))
    return max(kept.intersection(*(own for _, own in offers if own is not None)), default=None)


def kept_steps(memory: int) -> dict[int, int]:
    """The steps that are kept, and the slot of each."""
    found = {slots.step_of(memory, slot): slot for slot in STATE_SLOTS}
    found.pop(slots.NO_STEP, None)
    return found


def oldest_slot(memory: int) -> int:
    """The slot to be written next."""
    return min(STATE_SLOTS, key=lambda slot: slots.step_of(memory, slot))


def check_size(content: object, num_copies: int = 1) -> None:
    """Check that so many copies of the tensors fit, since the kernel would otherwise kill the pod.

    Raises:
        MemoryError: they do not.
    """
    storages = [tensor.untyped_storage() for tensor in tensors_in(content)]
    needed = num_copies * sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    left = available_bytes() - MARGIN_BYTES
    if needed > left:
        raise MemoryError(
            f"it needs {needed / 2**20:.0f} MiB, and the memory limit of the pod or the host leaves"
            f" {max(0, left) / 2**20:.0f} MiB; raise resources.limits.memory, or use a larger node"
        )


def buffers_of(state: State) -> list[torch.Tensor]:
    """Those that may differ between ranks, each one once."""
    found = {}
    for part in state.parts.values():
        for name, buffer in part.named_buffers() if isinstance(part, nn.Module) else ():
            if not (isinstance(part, AveragedModel) and name == "n_averaged"):  # which counts steps
                found[id(buffer)] = buffer
    return list(found.values())


def own_content(drawn: generators.Captured | None, buffers: Sequence[torch.Tensor]) -> bytes:
    """What only one rank knows, as `restore` reads it. The buffers are in memory of the host."""
    flat = map(_flatten_dense_tensors, _by_type(buffers))
    packed = b"".join(as_bytes(same).numpy().tobytes() for same in flat)
    return pickle.dumps((drawn, packed))


def _by_type(buffers: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The buffers of each type, which torch packs in one call: one for each of the 60 of a ResNet-18 takes four times as long."""
    found: dict[torch.dtype, list[torch.Tensor]] = {}
    for buffer in buffers:
        found.setdefault(buffer.dtype, []).append(buffer)
    return list(found.values())


@torch.no_grad()
def _unpack(buffers: list[torch.Tensor], packed: bytes | memoryview) -> None:
    ordered = list(chain(*_by_type(buffers)))
    pieces = torch.split(torch.frombuffer(bytearray(packed), dtype=torch.uint8), [buffer.nbytes for buffer in ordered])
    for buffer, piece in zip(ordered, pieces, strict=True):
        buffer.copy_(piece.clone().view(buffer.dtype).view_as(buffer))
