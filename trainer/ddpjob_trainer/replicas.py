"""The invariant of data parallelism: after each step all ranks hold the same parameters, bit for bit."""

import hashlib

import torch
from torch import nn

from ddpjob_ranks.distributed import Gang, as_bytes


class ReplicasDifferError(RuntimeError):
    """The parameters of two ranks differ, which DDP should make impossible."""


def digest(tensor: torch.Tensor) -> str:
    """SHA-256 of a tensor's values in their logical order, independent of the memory format."""
    return hashlib.sha256(as_bytes(tensor.cpu()).numpy().tobytes()).hexdigest()


def model_digest(model: nn.Module) -> str:
    """One SHA-256 for all parameters of a model, in their order."""
    return hashlib.sha256("".join(digest(p) for p in model.parameters()).encode()).hexdigest()


def verify(model: nn.Module, gang: Gang, *, step: int) -> None:
    """Compare the parameters of all ranks.

    Raises:
        ReplicasDifferError: names the first parameter that differs and the ranks that differ from rank 0.
    """
    digests_by_rank = gang.all_gather([digest(parameter) for parameter in model.parameters()])
    for index, (name, _) in enumerate(model.named_parameters()):
        others = [rank for rank, digests in enumerate(digests_by_rank) if digests[index] != digests_by_rank[0][index]]
        if others:
            raise ReplicasDifferError(f"after step {step} parameter {name} of ranks {others} differs from rank 0's")
