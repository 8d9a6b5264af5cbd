"""The copy of the state in host memory, on CPUs but for the buffer of a GPU."""

from unittest import mock

import pytest
import torch

from ddpjob_session.checkpoints.snapshot import HostCopy
from ddpjob_session.checkpoints.snapshot import tensors_in as tensors
from ddpjob_session.state import from_bytes
from support.saved_states import to_bytes

CPU = torch.device("cpu")


def state() -> dict[str, object]:
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


def test_it_holds_the_same_values_and_layouts_and_later_changes_do_not_reach_it():
    original = state()
    copy = HostCopy(CPU).take(original)
    expected = [tensor.clone() for tensor in tensors(original)]
    for tensor in tensors(original):
        tensor.add_(1)
    for found, before in zip(tensors(copy), expected, strict=True):
        assert torch.equal(found, before)
        assert (found.dtype, found.stride()) == (before.dtype, before.stride())
    assert (copy["step"], copy["optimizer"]["groups"][0], copy["optimizer"]["groups"][1][1]) == (3, {"lr": 0.1}, None)


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


def test_the_next_copy_uses_the_same_memory_unless_the_state_has_other_tensors():
    copy, first = HostCopy(CPU), state()
    before = [tensor.data_ptr() for tensor in tensors(copy.take(first))]
    assert [tensor.data_ptr() for tensor in tensors(copy.take(state()))] == before
    first["more"] = torch.arange(3)
    assert torch.equal(copy.take(first)["more"], torch.arange(3))


def test_for_a_gpu_all_tensors_lie_in_one_pinned_buffer(monkeypatch):
    allocations = []

    def empty(*arguments, pin_memory=False, **options):
        if pin_memory:
            allocations.append(arguments)
        return original(*arguments, **options)

    original = torch.empty
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.cuda, "Event", mock.Mock())
    copy = HostCopy(torch.device("cuda"))
    copied = tensors(copy.take(state()))
    assert len(allocations) == 1
    addresses = [tensor.data_ptr() for tensor in copied if tensor.numel()]
    assert max(addresses) - min(addresses) < allocations[0][0]
    copy.take(state())
    assert len(allocations) == 1


def test_a_part_that_is_loaded_and_kept_does_not_keep_the_memory_of_the_others():
    original = {"model": {"weight": torch.rand(1000)}, "optimizer": {"momentum": torch.rand(1000)}}
    model = from_bytes(to_bytes(HostCopy(CPU).take(original)))["model"]
    assert torch.equal(model["weight"], original["model"]["weight"])
    assert model["weight"].untyped_storage().nbytes() == 4000


@pytest.mark.parametrize("empty", [{}, {"step": 1}, {"model": {"nothing": torch.empty(0)}}])
def test_a_state_without_data_is_copied_too(empty):
    assert HostCopy(CPU).take(empty).keys() == empty.keys()
