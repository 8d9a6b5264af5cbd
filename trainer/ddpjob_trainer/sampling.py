# ruff: noqa: N806 - tensors carry their shape in their name
"""Which samples make up a step, and which of them a rank takes.

Everything is a function of the step, so there is no `set_epoch` to forget. Each epoch has each sample once, at any world
size. Its last step may be smaller; no sample is dropped or repeated.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from ddpjob_ranks.errors import ConfigError
from ddpjob_trainer import randomness

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The steps of a whole training over `num_samples` samples, in epochs of `steps_per_epoch`."""

    num_samples: int
    global_batch_size: int
    seed: int
    #: The device of the sample ids.
    device: torch.device

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in an epoch; the last one may have fewer samples."""
        return -(-self.num_samples // self.global_batch_size)

    def epoch_of(self, step: int) -> int:
        """The epoch that the step belongs to."""
        return step // self.steps_per_epoch

    def global_batch(self, step: int) -> torch.Tensor:
        """The ids of the step's samples over all ranks (int64), in the epoch's own random order."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        start = batch * self.global_batch_size
        order_N = _order(self.num_samples, self.device, seed=self.seed, epoch=epoch)
        return order_N[start : start + self.global_batch_size]


@lru_cache(maxsize=2)  # a thread that makes batches ahead may be in the next epoch
def _order(num_samples: int, device: torch.device, *, seed: int, epoch: int) -> torch.Tensor:
    """All ids, ordered by a random key; equal keys (2^32 of them exist) stay in the order of their ids."""
    ids_N = torch.arange(num_samples, device=device)
    keys_N = randomness.uniform_integers(ids_N, seed=seed, epoch=epoch, stream=randomness.ORDER)
    return torch.argsort(keys_N, stable=True)


def share(num_samples: int, *, rank: int, world_size: int) -> slice:
    """The rank's contiguous part of `num_samples` samples. Parts differ by one at most; lower ranks have the larger."""
    small, larger = divmod(num_samples, world_size)
    start = rank * small + min(rank, larger)
    return slice(start, start + small + (rank < larger))


def num_parts(num_samples: int, size: int) -> int:
    """In how many parts of up to `size` samples (0: in one part) so many samples go through the model."""
    return -(-num_samples // size) if size else 1


def check_shares(model: nn.Module, sampling: Sampling, *, world_size: int, micro_batch_size: int = 0) -> None:
    """Refuse a batch split that a model with BatchNorm cannot train on.

    In training BatchNorm normalises over the samples of its rank, and one sample has no variance (torch raises if the
    feature map is 1x1, and otherwise trains on noise). SyncBatchNorm normalises over all ranks, but would include the
    sample of weight 0 that a rank without a share takes.

    Raises:
        ConfigError: some step leaves a rank too few samples.
    """
    synchronised = any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())
    needed = 1 if synchronised else 2
    if not synchronised and not any(isinstance(module, BATCH_NORMS) for module in model.modules()):
        return
    num_samples, size = sampling.num_samples, sampling.global_batch_size
    last = last_batch_size(num_samples, size)
    for step in (min(size, num_samples), last):
        parts = num_parts(-(-step // world_size), micro_batch_size)
        if micro_batch_size == 1 or (not synchronised and parts > 1 and step // world_size < 2 * parts):
            raise ConfigError(
                f"config: microBatchSize is {micro_batch_size}, which leaves a part of 1 sample, but the model's BatchNorm"
                " needs 2 samples or more: set it to 4 or more"
            )
    if last // world_size < needed:
        fitting = (n for n in range(1, num_samples + 1) if last_batch_size(num_samples, n) // world_size >= needed)
        nearest = min(fitting, key=lambda n: abs(n - size), default=None)
        raise ConfigError(
            f"globalBatchSize {size}: the last step of an epoch of {num_samples} samples has {last}, which gives one of"
            f" {world_size} ranks {last // world_size}; the model's {'SyncBatchNorm' if synchronised else 'BatchNorm'} needs"
            f" {needed} or more on each rank: {f'set globalBatchSize to {nearest}, or ' if nearest else ''}use fewer ranks"
            + ("" if synchronised else ", or, on GPUs, set syncBatchNorm to true")
        )


def last_batch_size(num_samples: int, global_batch_size: int) -> int:
    """Samples in the last step of an epoch."""
    return (num_samples - 1) % global_batch_size + 1
