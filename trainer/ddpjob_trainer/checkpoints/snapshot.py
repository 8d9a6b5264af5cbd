"""A copy of training state in host memory, which training cannot change any more."""

from typing import Any

import torch

#: Where a tensor stands in a nested state: the keys and positions that lead to it.
Place = tuple[object, ...]


class HostCopy:
    """Room for one copy of a nested state of dictionaries, lists and tensors; the next copy uses the same memory.

    Tensors of a GPU go to pinned memory in the order of the device's own work: the host does not wait for them, and
    steps that follow cannot change what is copied. (Written for CUDA, run on CPUs only.)
    """

    def __init__(self, device: torch.device) -> None:
        self._buffers: dict[Place, torch.Tensor] = {}
        self._began, self._ended = _event(device), _event(device)

    @torch.no_grad()
    def take(self, state: Any) -> Any:
        """The same state with tensors on the host. Those of a GPU hold their values once `wait` has returned."""
        if self._began is not None:
            self._began.record()
        copied = self._copied(state, ())
        if self._ended is not None:
            self._ended.record()
        return copied

    def wait(self) -> float:
        """Until the copy is complete. Returns the seconds that the device spent on it; 0 for a copy made by the host."""
        if self._began is None or self._ended is None:
            return 0.0
        self._ended.synchronize()
        milliseconds: float = self._began.elapsed_time(self._ended)
        return milliseconds / 1e3

    def _copied(self, value: Any, place: Place) -> Any:
        if isinstance(value, torch.Tensor):
            return self._buffer(value, place).copy_(value, non_blocking=True)
        if isinstance(value, dict):
            return {key: self._copied(item, (*place, key)) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._copied(item, (*place, index)) for index, item in enumerate(value))
        return value

    def _buffer(self, value: torch.Tensor, place: Place) -> torch.Tensor:
        buffer = self._buffers.get(place)
        if buffer is None or (buffer.shape, buffer.dtype) != (value.shape, value.dtype):
            buffer = self._buffers[place] = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
        return buffer


def _event(device: torch.device) -> torch.cuda.Event | None:
    return torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
