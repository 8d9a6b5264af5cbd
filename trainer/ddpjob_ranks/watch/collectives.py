"""What torch knows of the collectives of this rank: how many have begun, on the host and on the GPU, and their end."""

import contextlib
import json

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d  # torch.distributed's own, which it exports untyped
from torch.distributed import distributed_c10d


class Collectives:
    """The collectives of this process; none before the process groups are created."""

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
        return bool(_nccl_backends())

    def have_failed(self) -> bool:
        """Whether a collective on the GPU has ended without a result."""
        return any(backend.get_error() != c10d.ErrorType.SUCCESS for backend in _nccl_backends())

    def abort(self) -> None:
        """End the collectives on the GPU, so that the main thread continues and raises."""
        for backend in _nccl_backends():
            with contextlib.suppress(RuntimeError):  # what failed here cannot be used any more either
                backend.abort()


def num_started(trace: bytes) -> int:
    """Collectives that a device has started, by the JSON of torch's flight recorder.

    The recorder has the start of a collective only with TORCH_NCCL_ENABLE_TIMING, else -1. Its end is always there.
    """
    groups = (json.loads(trace).get("pg_status") or {}).values()  # nothing before the first collective
    started = (max(int(g["last_started_collective"]), int(g["last_completed_collective"]), 0) for g in groups)
    return sum(started)


def _nccl_backends() -> list[c10d.Backend]:
    groups = [group for group in _groups(default=True) if dist.get_backend(group) == "nccl"]
    return [group._get_backend(torch.device("cuda")) for group in groups]


def _groups(*, default: bool) -> list[dist.ProcessGroup]:
    """The default group, or the others (the control group); none before they are made. Every rank is in all of them."""
    return [group for group in tuple(distributed_c10d._world.pg_map) if (group is dist.group.WORLD) is default]


def _num_collectives(group: dist.ProcessGroup) -> int:
    """Collectives of the group that this rank has started; 0 where the backend does not count."""
    try:
        return int(group._get_sequence_number_for_group())  # type: ignore[attr-defined]
    except RuntimeError:
        return 0
