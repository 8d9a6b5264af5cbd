# ruff: noqa: N802, N803, N806, N815 - tensors carry their shape in their name
"""Images on the device: a split of a data set, and what a rank feeds its model from it.

Images stay uint8 on the device and are augmented and normalised there, in one vectorised pass over a batch.
Shapes: N samples of a split, B of a batch, C channels, H rows, W columns.
"""

from dataclasses import dataclass

import torch

from ddpjob_trainer import randomness
from ddpjob_trainer.sampling import Sampling, share


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Labelled images. `images_NCHW` is uint8, `labels_N` int64."""

    images_NCHW: torch.Tensor
    labels_N: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels_N)

    def to(self, device: torch.device) -> "Split":
        """The same on a device."""
        return Split(images_NCHW=self.images_NCHW.to(device), labels_N=self.labels_N.to(device))


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A training split and a held-out split that training never sees."""

    train: Split
    test: Split
    num_classes: int

    def to(self, device: torch.device) -> "DataSet":
        """The same on a device."""
        return DataSet(train=self.train.to(device), test=self.test.to(device), num_classes=self.num_classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """How pixels become a network's input: `(pixel - mean) / std` for each channel, in pixel units of 0 to 255.

    In training each image is also shifted by up to `max_shift` pixels each way, with zeros (of the normalised input)
    coming in, which is a random crop of the padded image; and mirrored in half of the cases if `flip`.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    max_shift: int
    flip: bool

    def normalise(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """float32 of mean 0 and standard deviation 1 over the training split."""
        mean = torch.tensor(self.mean, device=images_BCHW.device).view(1, -1, 1, 1)
        std = torch.tensor(self.std, device=images_BCHW.device).view(1, -1, 1, 1)
        return (images_BCHW.float() - mean) / std

    def augment(self, images_BCHW: torch.Tensor, ids_B: torch.Tensor, *, seed: int, epoch: int) -> torch.Tensor:
        """Normalised images, each shifted and mirrored as its (seed, epoch, sample id) says."""

        def random_B(stream: int) -> torch.Tensor:
            return randomness.uniform_integers(ids_B, seed=seed, epoch=epoch, stream=stream)

        (size_B, channels, height, width), device = images_BCHW.shape, images_BCHW.device
        padded = torch.nn.functional.pad(self.normalise(images_BCHW), (self.max_shift,) * 4)
        num_shifts = 2 * self.max_shift + 1
        rows_BH = random_B(randomness.SHIFT_ROWS).remainder(num_shifts)[:, None] + torch.arange(height, device=device)
        columns_BW = torch.arange(width, device=device).expand(size_B, width)
        if self.flip:
            mirrored_B1 = (random_B(randomness.FLIP) % 2 == 1)[:, None]
            columns_BW = torch.where(mirrored_B1, width - 1 - columns_BW, columns_BW)
        columns_BW = columns_BW + random_B(randomness.SHIFT_COLUMNS).remainder(num_shifts)[:, None]
        batch_index = torch.arange(size_B, device=device).view(-1, 1, 1, 1)
        channel_index = torch.arange(channels, device=device).view(1, -1, 1, 1)
        return padded[batch_index, channel_index, rows_BH[:, None, :, None], columns_BW[:, None, None, :]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A rank's part of a step. `weights_B` sums over all ranks to the world size, since DDP averages gradients."""

    images_BCHW: torch.Tensor
    labels_B: torch.Tensor
    weights_B: torch.Tensor

    def loss(self, logits_BK: torch.Tensor) -> torch.Tensor:
        """This rank's loss, whose mean over ranks is the mean cross-entropy over the step's samples."""
        losses_B = torch.nn.functional.cross_entropy(logits_BK, self.labels_B, reduction="none")
        return (losses_B * self.weights_B).sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Gives one rank its part of each training step."""

    split: Split
    sampling: Sampling
    preparation: Preparation
    rank: int
    world_size: int

    def batch(self, step: int) -> Batch:
        """The rank's samples of the step, augmented.

        A step of fewer samples than ranks leaves some with none. They take one sample of weight 0, as they must join
        the all-reduce all the same.
        """
        global_ids = self.sampling.global_batch(step)
        ids_B = global_ids[share(len(global_ids), rank=self.rank, world_size=self.world_size)]
        weight = self.world_size / len(global_ids)
        if len(ids_B) == 0:
            ids_B, weight = global_ids[:1], 0.0
        epoch = self.sampling.epoch_of(step)
        images_BCHW = self.preparation.augment(
            self.split.images_NCHW[ids_B], ids_B, seed=self.sampling.seed, epoch=epoch
        )
        return Batch(
            images_BCHW=images_BCHW,
            labels_B=self.split.labels_N[ids_B],
            weights_B=torch.full((len(ids_B),), weight, device=images_BCHW.device),
        )
