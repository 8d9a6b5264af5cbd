"""The copy of the state in host memory."""

import mmap
import os
from unittest import mock

import pytest
import torch

from ddpjob_session.checkpoints.snapshot import HostCopy
from ddpjob_session.checkpoints.snapshot import tensors_in as tensors
from ddpjob_session.state import from_bytes
from support.devices import on_each_device
from support.saved_states import to_bytes

CPU = torch.device("cpu")


def state(device: torch.device = CPU) -> dict[str, object]:
    with torch.device(device):
        return _state()


def _state() -> dict[str, object]:
    return {
        "step": 3,
        "model": {
            "weight": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
            "halves": torch.rand(7).bfloat16(),
            "bias": torch.rand(5),
            "count": torch.tensor(9),
            "nothing": torch.empty(0),
        },
        "optimizer": {"state": {0: {"momentum": torch.rand(3, 5).t()}}, "groups": [{"lr": 0.1}, (torch.rand(2), None)]},
    }


@on_each_device
def test_it_holds_the_same_values_and_layouts_and_later_changes_do_not_reach_it(device):
    original = state(device)
    expected = [tensor.clone() for tensor in tensors(original)]
    copy = (copies := HostCopy(device)).take(original)
    for tensor in tensors(original):
        tensor.add_(1)
    copies.wait()
    for found, before in zip(tensors(copy), expected, strict=True):
        assert torch.equal(found, before.cpu())
        assert (found.dtype, found.stride()) == (before.dtype, before.stride())
    assert (copy["step"], copy["optimizer"]["groups"][0], copy["optimizer"]["groups"][1][1]) == (3, {"lr": 0.1}, None)


@on_each_device
def test_each_copy_is_of_one_step_while_the_next_ones_are_in_the_queue_of_the_device(device):
    weights = [torch.zeros(1 << 20, device=device) for _ in range(8)]
    copies = HostCopy(device)
    for step in range(1, 20):
        torch._foreach_add_(weights, 1.0)
        copy = copies.take({"model": weights})
        torch._foreach_add_(weights, 1.0)
        copies.wait()
        for found in tensors(copy):
            assert torch.equal(found, torch.full_like(found, 2 * step - 1))


def test_it_keeps_the_versions_of_a_models_modules():
    """Without the versions, a model that checks them (torchvision's MNASNet, for one) could never load its checkpoint."""
    model = torch.nn.BatchNorm1d(2).state_dict()
    copy = HostCopy(CPU).take({"model": model})
    assert vars(copy["model"])["_metadata"] == vars(model)["_metadata"]
    assert from_bytes(to_bytes(copy))["model"]._metadata[""]["version"] == 2


def test_it_copies_what_is_no_tensor_as_it_is():
    """MultiStepLR counts how often each milestone is due in a Counter, to which `update` adds."""
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    copy = HostCopy(CPU).take({"scheduler": scheduler.state_dict()})
    assert copy["scheduler"] == scheduler.state_dict()
    assert copy["scheduler"]["milestones"] is not scheduler.milestones, "a later step may change it"


@on_each_device
def test_the_next_copy_uses_the_same_memory_unless_the_state_has_other_tensors(device):
    copy, first = HostCopy(device), state(device)
    before = [tensor.data_ptr() for tensor in tensors(copy.take(first))]
    assert [tensor.data_ptr() for tensor in tensors(copy.take(state(device)))] == before
    first["more"] = torch.arange(3, device=device)
    more = copy.take(first)["more"]
    copy.wait()
    assert torch.equal(more, torch.arange(3))


def test_for_a_gpu_all_tensors_lie_in_one_buffer_that_is_locked_as_long_as_it_is_used(monkeypatch):
    locked: dict[int, int] = {}
    cudart = mock.Mock()
    cudart.cudaHostRegister = lambda address, size, _: bool(locked.update({address: size}))
    cudart.cudaHostUnregister = lambda address: locked.pop(address) < 0
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(torch.cuda, "check_error", lambda found: found == 0 or pytest.fail("an error of CUDA"))
    monkeypatch.setattr(torch.cuda, "Event", mock.Mock())
    copy, first = HostCopy(torch.device("cuda")), state()
    for _ in range(2):
        copied = tensors(copy.take(first))
        ((begin, size),) = locked.items()
        assert begin % mmap.PAGESIZE == 0, "CUDA locks whole pages, and none twice"
        assert all(begin <= tensor.data_ptr() < begin + size for tensor in copied if tensor.numel())
        assert size < 2 * sum(tensor.nbytes for tensor in copied) + 64 * len(copied), "not rounded up"
        first["more"] = torch.arange(1 << 20)


def test_a_process_that_is_forked_does_not_move_the_memory_that_a_gpu_writes():
    """In private memory, what the parent writes next would be in a new page, and the GPU would write the old one."""
    (copied,) = tensors(HostCopy(CPU).take({"model": torch.zeros(3)}))
    if (child := os.fork()) == 0:
        copied.fill_(1.0)  # as the GPU would: into the page that was there before the fork
        os._exit(0)
    os.waitpid(child, 0)
    assert torch.equal(copied, torch.ones(3))


def test_a_part_that_is_loaded_and_kept_does_not_keep_the_memory_of_the_others():
    original = {"model": {"weight": torch.rand(1000)}, "optimizer": {"momentum": torch.rand(1000)}}
    model = from_bytes(to_bytes(HostCopy(CPU).take(original)))["model"]
    assert torch.equal(model["weight"], original["model"]["weight"])
    assert model["weight"].untyped_storage().nbytes() == 4000


@pytest.mark.parametrize("empty", [{}, {"step": 1}, {"model": {"nothing": torch.empty(0)}}])
def test_a_state_without_data_is_copied_too(empty):
    assert HostCopy(CPU).take(empty).keys() == empty.keys()
