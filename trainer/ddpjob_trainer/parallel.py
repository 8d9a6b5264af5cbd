"""The model on all ranks: DistributedDataParallel as this trainer uses it."""

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from ddpjob_trainer.config import ConfigError, TrainerConfig
from ddpjob_trainer.distributed import Gang


def synchronise_batch_norm(model: nn.Module, config: TrainerConfig, device: torch.device) -> nn.Module:
    """The model with BatchNorm over the samples of all ranks, if the configuration asks for it.

    Raises:
        ConfigError: this device cannot: PyTorch has SyncBatchNorm for GPUs alone.
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


def replicate(model: nn.Module, config: TrainerConfig, gang: Gang) -> DistributedDataParallel:
    """The model, equal on all ranks from here on, with gradients averaged over them in buckets during backward."""
    replica = DistributedDataParallel(
        model,
        device_ids=[gang.device] if gang.device.type == "cuda" else None,
        bucket_cap_mb=config.bucket_cap_mb or None,
        forward_sync_buffers=False,  # a broadcast per step for what evaluation and saving alone need; they do it
        gradient_as_bucket_view=True,
    )
    if config.gradient_compression == "bf16":
        replica.register_comm_hook(None, bf16_compress_hook)
    return replica
