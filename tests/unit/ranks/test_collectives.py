"""What a rank does with all its process groups on a GPU, where groups that torch would make there are given."""

import threading

import torch
from torch._C import _distributed_c10d as c10d

from ddpjob_ranks.watch.collectives import Collectives

SECONDS = 30.0


class Group:
    """A process group, which is its own backend for the devices that it has."""

    def __init__(self, backend: str, *devices: str, waits_for: "Group | None" = None) -> None:
        self._backend, self._device_types = backend, [torch.device(device) for device in devices]
        self._waits_for = waits_for
        self.aborted = threading.Event()
        self.error = c10d.ErrorType.SUCCESS

    def _get_backend(self, device: torch.device) -> "Group":
        assert device in self._device_types
        return self

    def name(self) -> str:
        return self._backend

    def get_error(self) -> c10d.ErrorType:
        return self.error

    def abort(self) -> None:
        if self._waits_for is None or self._waits_for.aborted.wait(SECONDS):
            self.aborted.set()


def test_all_groups_of_nccl_are_aborted_also_those_that_a_program_has_made_for_itself():
    groups = [Group("nccl", "cuda"), Group("gloo", "cpu"), Group("nccl", "cuda"), Group("gloo", "cpu", "cuda")]
    Collectives(groups=lambda: groups).abort()
    assert [group.aborted.is_set() for group in groups] == [True, False, True, False]


def test_the_abort_of_a_group_may_wait_for_that_of_another():
    """The kernel of one waits in the queue of the GPU behind that of the other."""
    behind = Group("nccl", "cuda")
    groups = [Group("nccl", "cuda", waits_for=behind), behind]
    Collectives(groups=lambda: groups).abort()
    assert all(group.aborted.is_set() for group in groups)


def test_a_collective_of_any_group_may_have_failed():
    groups = [Group("nccl", "cuda"), Group("nccl", "cuda")]
    collectives = Collectives(groups=lambda: groups)
    assert not collectives.have_failed()
    groups[1].error = c10d.ErrorType.COMM_ERROR
    assert collectives.have_failed()
