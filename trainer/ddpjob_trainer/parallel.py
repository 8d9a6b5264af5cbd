"""The model on all ranks: DistributedDataParallel as this trainer uses it."""

import inspect
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from ddpjob_ranks.distributed import Gang
from ddpjob_ranks.errors import ConfigError
from ddpjob_session import replica
from ddpjob_trainer.config import TrainerConfig


def synchronise_batch_norm(model: nn.Module, config: TrainerConfig, device: torch.device) -> nn.Module:
    """The model with BatchNorm over the samples of all ranks, if the configuration asks for it.

    Raises:
        ConfigError: the device is a CPU; PyTorch has SyncBatchNorm for GPUs only.
    """
    if not config.sync_batch_norm:
        return model
    if device.type == "cpu":
        raise ConfigError(
            "config: syncBatchNorm is true but the ranks train on CPUs, for which PyTorch has no SyncBatchNorm;"
            " set it to false or run on GPUs"
        )
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    return converted


#: `forward_sync_buffers` broadcasts rank 0's buffers in each forward pass. Without it each rank keeps its own, such as the
#: statistics of BatchNorm, and gets rank 0's before each evaluation and each checkpoint (`Gang.broadcast_buffers`).
DDP_OPTIONS: Final[Mapping[str, bool]] = {"gradient_as_bucket_view": True, "forward_sync_buffers": False}


def replicate(model: nn.Module, config: TrainerConfig, gang: Gang) -> DistributedDataParallel:
    """The model in DDP: equal on all ranks from here on, with gradients averaged in buckets during the backward pass."""
    options: dict[str, Any] = {**DDP_OPTIONS}
    if "forward_sync_buffers" not in inspect.signature(DistributedDataParallel).parameters:  # torch 2.11
        options["broadcast_buffers"] = options.pop("forward_sync_buffers")
    gang.broadcast_buffers(model)  # DDP itself leaves buffers out where broadcast_buffers is False
    replicated = replica.replicate(model, gang, bucket_cap_mb=config.bucket_cap_mb or None, **options)
    if config.gradient_compression == "bf16":
        replicated.register_comm_hook(None, bf16_compress_hook)
    return replicated
