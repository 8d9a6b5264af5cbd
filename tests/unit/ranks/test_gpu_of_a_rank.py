import pytest
import torch

from ddpjob_ranks import distributed
from ddpjob_ranks.errors import ConfigError
from support.workers import worker


@pytest.fixture(autouse=True)
def no_gpu_variables(monkeypatch):
    for name in ("DDPJOB_GPUS_PER_NODE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def device_of(monkeypatch, *, local_rank, num_gpus):
    """The device of one of 4 ranks of a node that shows it so many GPUs, and the one made current."""
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num_gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    device = distributed._device(worker(local_rank, 4, local_rank=local_rank, local_world_size=4))
    assert current == ([device] if num_gpus else [])
    return str(device)


@pytest.mark.parametrize(
    ("num_gpus", "devices"),
    [(4, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]), (1, 4 * ["cuda:0"]), (0, 4 * ["cpu"])],
    ids=["each rank sees all GPUs", "each rank sees its own GPU", "no GPUs"],
)
def test_each_rank_of_a_node_has_its_device(monkeypatch, num_gpus, devices):
    assert [device_of(monkeypatch, local_rank=rank, num_gpus=num_gpus) for rank in range(4)] == devices


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match="local rank 3 has no GPU, because CUDA shows 2 on this node"):
        device_of(monkeypatch, local_rank=3, num_gpus=2)


@pytest.mark.parametrize("num_gpus", [0, 1, 3])
def test_a_node_that_shows_fewer_gpus_than_the_pod_was_given_is_refused(monkeypatch, num_gpus):
    monkeypatch.setenv("DDPJOB_GPUS_PER_NODE", "4")
    monkeypatch.setenv("DDPJOB_NAME", "job")
    monkeypatch.setenv("NODE_NAME", "node-7")
    with pytest.raises(RuntimeError, match=rf"on node node-7 was given 4 GPUs .* sees {num_gpus}: .* nvidia-smi"):
        device_of(monkeypatch, local_rank=0, num_gpus=num_gpus)


def test_slices_of_a_gpu_may_be_shown_as_one(monkeypatch):
    monkeypatch.setenv("DDPJOB_GPUS_PER_NODE", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    assert str(distributed._device(worker())) == "cuda:0"


def test_a_choice_of_gpus_is_respected(monkeypatch):
    monkeypatch.setenv("DDPJOB_GPUS_PER_NODE", "4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device_of(monkeypatch, local_rank=0, num_gpus=0) == "cpu"
