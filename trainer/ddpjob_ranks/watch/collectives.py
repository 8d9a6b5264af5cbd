"""What torch knows of the collectives of this rank: how many have begun, on the host and on the GPU, and their end."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d  # torch.distributed's own, which it exports untyped
from torch.distributed import distributed_c10d


class Collectives:
    """The collectives of this process; none before the process groups are created.

    `groups` are all its process groups, also those that a program makes for itself.
    """

    def __init__(self, groups: Callable[[], Sequence[Any]] = lambda: tuple(distributed_c10d._world.pg_map)) -> None:
        self._groups = groups

    def num_begun(self, *, default: bool) -> int:
        """Collectives of the default group, or else of the control group, that the host has begun."""
        return sum(map(_num_collectives, _groups(default=default)))

    def num_started_by_gpu(self) -> int:
        """Collectives of the default group that the GPU has started; 0 on CPUs."""
        if not self.on_gpu():
            return 0
        return num_started(c10d._dump_nccl_trace_json(includeCollectives=False))  # type: ignore[attr-defined] # not in its stubs

    def on_gpu(self) -> bool:
        """Whether a GPU runs collectives of this rank."""
        return bool(_nccl_backends(self._groups()))

    def have_failed(self) -> bool:
        """Whether a collective on the GPU has ended without a result."""
        return any(backend.get_error() != c10d.ErrorType.SUCCESS for backend in _nccl_backends(self._groups()))

    def abort(self) -> None:
        """End the collectives on the GPU, so that the main thread continues and raises.

        Each group on a thread of its own: the kernel of one may wait in a queue of the GPU behind that of another.
        """
        aborts = [threading.Thread(target=_abort, args=(b,), daemon=True) for b in _nccl_backends(self._groups())]
        for abort in aborts:
            abort.start()
        for abort in aborts:
            abort.join()


def num_started(trace: bytes) -> int:
    """Collectives that a device has started, by the JSON of torch's flight recorder.

    The recorder has the start of a collective only with TORCH_NCCL_ENABLE_TIMING, else -1. Its end is always there.
    """
    groups = (json.loads(trace).get("pg_status") or {}).values()  # nothing before the first collective
    started = (max(int(g["last_started_collective"]), int(g["last_completed_collective"]), 0) for g in groups)
    return sum(started)


def _abort(backend: c10d.Backend) -> None:
    with contextlib.suppress(RuntimeError):  # what failed here cannot be used any more either
        backend.abort()


def _nccl_backends(groups: Iterable[Any]) -> list[c10d.Backend]:
    cuda = torch.device("cuda")
    backends = [group._get_backend(cuda) for group in groups if cuda in group._device_types]
    return [backend for backend in backends if backend.name().startswith("nccl")]


def _groups(*, default: bool) -> list[dist.ProcessGroup]:
    """The default group, or the others (the control group); none before they are made. Every rank is in all of them."""
    return [group for group in tuple(distributed_c10d._world.pg_map) if (group is dist.group.WORLD) is default]


def _num_collectives(group: dist.ProcessGroup) -> int:
    """Collectives of the group that this rank has started; 0 where the backend does not count."""
    try:
        return int(group._get_sequence_number_for_group())  # type: ignore[attr-defined]
    except RuntimeError:
        return 0
