"""A copy of the training state in host memory, which later steps cannot change."""

import mmap
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves  # private, but torch.distributed.checkpoint is built on it

#: Each group of tensors starts at a multiple of this, which any type allows.
ALIGNMENT_BYTES = 64
#: cudaHostRegisterPortable: the memory is locked for each context of the process.
PORTABLE = 1


@dataclass(frozen=True, slots=True)
class _Source:
    """What decides where a tensor is stored in the copy."""

    part: str
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]


class HostCopy:
    """Memory for one copy of a state: a dictionary of parts with nested dictionaries, lists and tensors.

    All tensors are copied into one flat buffer, which the next copy uses again. For a GPU it is pinned: the copy then runs
    in the order of the device's own work, the host does not wait for it, and later steps cannot change what is copied.
    (Written for CUDA; it has run on CPUs only.) That work includes collectives. If they are aborted because another rank failed, what
    follows them in the queue is wrong, and so is the copy.

    Tensors of one part and type share a storage, which torch.save writes as a single piece.
    """

    def __init__(self, device: torch.device, is_wrong: Callable[[], bool] = lambda: False) -> None:
        """`is_wrong` tells whether collectives of this rank were aborted."""
        self._device = device
        self._is_wrong = is_wrong
        self._pinned = device.type == "cuda"
        self._began, self._ended = _event(device), _event(device)
        self._sources: list[_Source] = []
        self._slots: list[torch.Tensor] = []
        self._memory = torch.empty(0, dtype=torch.uint8)

    @torch.no_grad()
    def take(self, state: dict[str, Any]) -> dict[str, Any]:
        """The same state with all tensors in host memory. Those of a GPU are complete after `wait` has returned."""
        tensors = [(part, tensor) for part, value in state.items() for tensor in tensors_in(value)]
        # What a flat buffer cannot hold, such as sparse and quantized tensors, is copied one by one.
        others = {id(tensor): tensor.clone().cpu() for _, tensor in tensors if not _is_flat(tensor)}
        tensors = [(part, tensor) for part, tensor in tensors if id(tensor) not in others]
        # Tied weights are one tensor in the copy. `state_dict` makes a new object for each name, in the same memory.
        unique = {_place(part, tensor): (part, tensor) for part, tensor in tensors}
        sources = [_Source(part, each.dtype, each.shape, each.stride()) for part, each in unique.values()]
        if sources != self._sources:
            self._allocate(sources)
        if self._began is not None:
            self._began.record()
        if self._slots:
            torch._foreach_copy_(self._slots, [tensor for _, tensor in unique.values()], non_blocking=True)
        if self._ended is not None:
            self._ended.record()
        # Also keeps the attribute _metadata of a model's state: the versions of its modules.
        slots = dict(zip(unique, self._slots, strict=True))
        return deepcopy(state, others | {id(tensor): slots[_place(part, tensor)] for part, tensor in tensors})

    def wait(self) -> float:
        """Wait until the copy is complete. Returns the seconds of device time that it took; 0 for a copy by the host.

        Raises:
            RuntimeError: the copy may be wrong, because collectives were aborted.
        """
        if self._ended is not None:
            with torch.cuda.device(self._device):  # a new thread would create a context on GPU 0
                self._ended.synchronize()
        if self._is_wrong():
            raise RuntimeError("collectives before the copy were aborted because another rank failed")
        if self._began is None or self._ended is None:
            return 0.0
        milliseconds: float = self._began.elapsed_time(self._ended)
        return milliseconds / 1e3

    def _allocate(self, sources: list[_Source]) -> None:
        if self._pinned and self._memory.nbytes:
            torch.cuda.check_error(int(torch.cuda.cudart().cudaHostUnregister(self._memory.data_ptr())))  # type: ignore[no-untyped-call]
        self._sources, (self._memory, self._slots) = sources, _laid_out(sources)
        if self._pinned and self._memory.nbytes:
            # Not torch's own pinned memory, whose sizes are powers of two.
            found = torch.cuda.cudart().cudaHostRegister(self._memory.data_ptr(), self._memory.nbytes, PORTABLE)  # type: ignore[no-untyped-call]
            torch.cuda.check_error(int(found))


def _is_flat(tensor: torch.Tensor) -> bool:
    is_plain = type(tensor) in (torch.Tensor, nn.Parameter)
    return is_plain and tensor.layout is torch.strided and not tensor.is_quantized


def _place(part: str, tensor: torch.Tensor) -> tuple[object, ...]:
    address = tensor.untyped_storage().data_ptr(), tensor.storage_offset()
    return part, *address, tensor.dtype, tensor.shape, tensor.stride()


def tensors_in(value: object) -> list[torch.Tensor]:
    """The tensors in nested dictionaries, lists and tuples."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _laid_out(sources: list[_Source]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A buffer, and in it a tensor for each source.

    Each part and type has a storage of its own within the buffer: whoever loads a checkpoint and keeps only the model then
    keeps only the model's memory.
    """
    groups: dict[tuple[str, torch.dtype], list[int]] = {}
    for index, source in enumerate(sources):
        groups.setdefault((source.part, source.dtype), []).append(index)
    counts = [sum(sources[index].shape.numel() for index in members) for members in groups.values()]
    sizes = [
        -(-count * dtype.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        for (_, dtype), count in zip(groups, counts, strict=True)
    ]
    buffer = _pages(sum(sizes))
    memory = buffer.numpy().data
    slots: dict[int, torch.Tensor] = {}
    for ((_, dtype), members), count, offset in zip(groups.items(), counts, accumulate(sizes, initial=0), strict=False):
        shared = (
            torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)
            if count
            else torch.empty(0, dtype=dtype, device="cpu")
        )
        position = 0
        for index in members:
            slots[index] = _like(sources[index], shared, position)
            position += sources[index].shape.numel()
    return buffer, [slots[index] for index in range(len(sources))]


def _pages(num_bytes: int) -> torch.Tensor:
    """Memory that shares no page with any other: CUDA locks whole pages, and none twice.

    Child processes share it. If it were private, the first write after a fork would move a page away from under the GPU, which
    goes on writing the old one.
    """
    if not num_bytes:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return torch.frombuffer(mmap.mmap(-1, num_bytes, mmap.MAP_SHARED), dtype=torch.uint8)


def _like(source: _Source, shared: torch.Tensor, position: int) -> torch.Tensor:
    """The elements of `shared` from the position on, with the shape and memory format of the source."""
    strides = torch.empty_like(torch.empty_strided(source.shape, source.stride, device="meta")).stride()
    return shared.as_strided(source.shape, strides, position)


def _event(device: torch.device) -> torch.cuda.Event | None:
    return torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
