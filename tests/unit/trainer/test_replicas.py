"""All ranks hold the same model, and one that differs is noticed."""

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist

from ddpjob_ranks.distributed import Gang
from ddpjob_trainer import replicas
from support.fakes import Fake


@dataclass
class TwoRanks(Fake):
    """What rank 0 sees of a gang of two whose other rank holds `other`."""

    other: torch.nn.Module

    def all_gather(self, value):
        return [value, [replicas.digest(parameter) for parameter in self.other.parameters()]]


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))


def test_equal_replicas_pass():
    replicas.verify(model(), TwoRanks(model()), step=5)


def test_one_bit_of_one_parameter_is_found_and_named():
    other = model()
    weight = other.get_parameter("1.weight").data.view(torch.int32)
    weight[0, 0] ^= 1
    with pytest.raises(replicas.ReplicasDifferError, match=r"after step 5 parameter 1.weight of ranks \[1\]"):
        replicas.verify(model(), TwoRanks(other), step=5)
    assert replicas.model_digest(other) != replicas.model_digest(model())


@pytest.mark.parametrize("kernel_size", [1, 3])
def test_the_memory_format_makes_no_difference(kernel_size):
    plain = torch.nn.Conv2d(4, 8, kernel_size)
    digest = replicas.model_digest(plain)
    assert replicas.model_digest(plain.to(memory_format=torch.channels_last)) == digest


def test_a_parameter_with_gaps_has_the_digest_of_its_values():
    values = torch.rand(3, 2)
    assert replicas.digest(values[:, 0]) == replicas.digest(values[:, 0].clone())


def buffers(seed: int) -> torch.nn.Module:
    """As BatchNorm has them, of several types and shapes."""
    torch.manual_seed(seed)
    layers = [torch.nn.BatchNorm2d(3) for _ in range(20)]
    for index, layer in enumerate(layers):
        layer(torch.rand(4 + seed, 3, 2, 2))
        layer.register_buffer("mask", torch.rand(3, 2).t() > 0.5)
        layer.register_buffer("bfloat16s", torch.rand(index).bfloat16())
        layer.register_buffer("strided", torch.rand(3, 2)[:, 0])
    return torch.nn.Sequential(*layers)


def test_buffers_of_rank_0_reach_the_others_in_one_broadcast(monkeypatch):
    messages: list[torch.Tensor] = []

    def broadcast(message: torch.Tensor, src: int) -> None:
        """The first call is rank 0's, the second another rank's."""
        assert src == 0
        if messages:
            message.copy_(messages[0])
        messages.append(message)

    monkeypatch.setattr(dist, "broadcast", broadcast)
    gang = Gang(rank=0, world_size=2, device=torch.device("cpu"), control=None)
    source, target = buffers(0), buffers(1)
    for model in (source, target):
        gang.broadcast_buffers(model)
    assert len(messages) == 2, "one on each rank"
    for (name, found), expected in zip(target.named_buffers(), source.buffers(), strict=True):
        assert torch.equal(found, expected), name
    gang.broadcast_buffers(torch.nn.Linear(1, 1))
    assert len(messages) == 2, "nothing to send"
