from dataclasses import dataclass

import pytest
import torch

from ddpjob_trainer import replicas


@dataclass
class TwoRanks:
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
    weight = other[1].weight.data.view(torch.int32)
    weight[0, 0] ^= 1
    with pytest.raises(replicas.ReplicasDifferError, match=r"after step 5 parameter 1.weight of ranks \[1\]"):
        replicas.verify(model(), TwoRanks(other), step=5)
    assert replicas.model_digest(other) != replicas.model_digest(model())


@pytest.mark.parametrize("kernel_size", [1, 3])
def test_the_memory_format_makes_no_difference(kernel_size):
    plain = torch.nn.Conv2d(4, 8, kernel_size)
    digest = replicas.model_digest(plain)
    assert replicas.model_digest(plain.to(memory_format=torch.channels_last)) == digest
