# ruff: noqa: N802, N803, N806, N815 - tensors carry their shape in their name
"""Images on the device: a split of a data set, and what a rank feeds its model from it.

Images stay uint8 on the device and are augmented and normalised there, in one vectorised pass over a batch. Any map-style
data set has the same interface (`Images`) by `loading.Samples`.
Nothing here waits for the device.
Shapes: N samples of a split, B of a batch, C channels, H rows, W columns.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch

from ddpjob_ranks.errors import ConfigError
from ddpjob_trainer import randomness
from ddpjob_trainer.sampling import Sampling, num_parts, share

#: Least number of samples whose images go into a split's fingerprint, if it has as many.
NUM_PROBED = 256

#: Images as the network wants them (float32, normalised, BCHW) and their labels (int64, B), both on the device.
Labelled = tuple[torch.Tensor, torch.Tensor]


class Images(Protocol):
    """A split of labelled images, wherever they are stored. Its batches are on the device that trains."""

    @property
    def device(self) -> torch.device:
        """The device on which it expects sample ids."""

    def __len__(self) -> int:
        """Number of samples."""

    def to(self, device: torch.device) -> "Images":
        """This split for the device that trains."""

    def augmented(self, ids_B: torch.Tensor, *, seed: int, epoch: int) -> Any:
        """These samples for training, `Labelled` if they are images: each a function of (seed, epoch, sample id)."""

    def batches(self, part: slice, size: int) -> Iterator[Any]:
        """The samples of the part in order, the same each time, up to `size` at a time; unreadable ones are left out."""

    def fingerprint(self) -> str:
        """Number of samples, and a hash of what distinguishes this split at little cost: all labels, some images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """How pixels become a network's input: `(pixel - mean) / std` for each channel, in pixel units of 0 to 255.

    In training each image is also shifted by up to `max_shift` pixels each way, which is a random crop of the padded
    image: padded with zeros (of the normalised input) or, with `reflect`, with its own mirror image. And it is mirrored:
    in half of the cases if `flip` is random; if it is alternating, in half of the cases in the first epoch and from then
    on every other time, so that two epochs show both sides of each image (Jordan 2024, arXiv 2404.00498, section 3.6).
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    max_shift: int
    flip: Literal["never", "random", "alternating"]
    reflect: bool = False

    def normalise(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """float32 of mean 0 and standard deviation 1 over the training split."""
        device = images_BCHW.device
        return (images_BCHW.float() - _per_channel(self.mean, device)) / _per_channel(self.std, device)

    def views(self, ids_N: torch.Tensor, *, seed: int, epoch: int) -> "Views":
        """How each sample is seen: a function of its (seed, epoch, sample id)."""

        def random_N(stream: int, epoch: int = epoch) -> torch.Tensor:
            return randomness.uniform_integers(ids_N, seed=seed, epoch=epoch, stream=stream)

        num_shifts = 2 * self.max_shift + 1
        drawn_in, turns = (0, epoch) if self.flip == "alternating" else (epoch, 0)
        return Views(
            rows=random_N(randomness.SHIFT_ROWS).remainder(num_shifts),
            columns=random_N(randomness.SHIFT_COLUMNS).remainder(num_shifts),
            mirrored=((random_N(randomness.FLIP, drawn_in) + turns) % 2 == 1) & (self.flip != "never"),
        )

    def augment(self, images_BCHW: torch.Tensor, views_B: "Views") -> torch.Tensor:
        """Normalised images, each shifted and mirrored."""
        (size_B, channels, height, width), device = images_BCHW.shape, images_BCHW.device
        mode = "reflect" if self.reflect else "constant"
        padded = torch.nn.functional.pad(self.normalise(images_BCHW), (self.max_shift,) * 4, mode=mode)
        rows_BH = views_B.rows[:, None] + torch.arange(height, device=device)
        columns_W = torch.arange(width, device=device)
        columns_BW = torch.where(views_B.mirrored[:, None], width - 1 - columns_W, columns_W) + views_B.columns[:, None]
        batch_index = torch.arange(size_B, device=device).view(-1, 1, 1, 1)
        channel_index = torch.arange(channels, device=device).view(1, -1, 1, 1)
        return padded[batch_index, channel_index, rows_BH[:, None, :, None], columns_BW[:, None, None, :]]


class Views(NamedTuple):
    """How samples are seen: first row and column of the padded image (int64), and whether mirrored (bool)."""

    rows: torch.Tensor
    columns: torch.Tensor
    mirrored: torch.Tensor

    def of(self, ids_B: torch.Tensor) -> "Views":
        """The views of these samples."""
        return Views(*(each[ids_B] for each in self))


@lru_cache(maxsize=2)
def _views_in_epoch(
    preparation: Preparation, num_samples: int, device: torch.device, *, seed: int, epoch: int
) -> Views:
    """The views of all samples: hashing takes 76 small operations, which a GPU would wait for in each step."""
    return preparation.views(torch.arange(num_samples, device=device), seed=seed, epoch=epoch)


@lru_cache
def _per_channel(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """The values as 1C11 on the device, copied there once: a copy from pageable memory waits for the device."""
    return torch.tensor(values, device=device).view(1, -1, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Labelled images on the device. `images_NCHW` is uint8, `labels_N` int64."""

    images_NCHW: torch.Tensor
    labels_N: torch.Tensor
    preparation: Preparation
    #: The fingerprint of the files that the images were decoded from. To be set where images are decoded: pixels may differ
    #: in the last bit between processors and versions of a decoder.
    stored_fingerprint: str = ""

    def __len__(self) -> int:
        return len(self.labels_N)

    @property
    def device(self) -> torch.device:
        """Where the images are."""
        return self.labels_N.device

    def to(self, device: torch.device) -> "Split":
        """This split on a device."""
        return replace(self, images_NCHW=self.images_NCHW.to(device), labels_N=self.labels_N.to(device))

    def augmented(self, ids_B: torch.Tensor, *, seed: int, epoch: int) -> Labelled:
        """These samples, augmented in one pass on the device."""
        views_N = _views_in_epoch(self.preparation, len(self), self.device, seed=seed, epoch=epoch)
        return self.preparation.augment(self.images_NCHW[ids_B], views_N.of(ids_B)), self.labels_N[ids_B]

    def batches(self, part: slice, size: int) -> Iterator[Labelled]:
        """The samples of the part in order, normalised."""
        for start in range(part.start, part.stop, size):
            batch = slice(start, min(start + size, part.stop))
            yield self.preparation.normalise(self.images_NCHW[batch]), self.labels_N[batch]

    def fingerprint(self) -> str:
        """The fingerprint of the files, or of all labels and the pixels of some images."""
        if self.stored_fingerprint:
            return self.stored_fingerprint
        images_NCHW = self.images_NCHW[:: probed(len(self)).step].cpu().numpy()
        shape = f"{tuple(self.images_NCHW.shape)}".encode()
        return fingerprint_of(self.labels_N.tolist(), [shape, *(image_CHW.tobytes() for image_CHW in images_NCHW)])


def probed(num_samples: int) -> range:
    """Samples whose images go into a fingerprint: all of them, or NUM_PROBED to twice as many, evenly spaced."""
    return range(0, num_samples, max(1, num_samples // NUM_PROBED))


def fingerprint_of(labels: Sequence[int], images: Iterable[bytes]) -> str:
    """The fingerprint of a split with these labels. `images` are those of the probed samples."""
    digest = hashlib.sha256()
    for part in (np.array(labels, dtype="<i8").tobytes(), *images):
        digest.update(len(part).to_bytes(8, "little") + part)
    return f"{len(labels)} samples, {digest.hexdigest()[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageData:
    """A training split and a held-out split that training never sees, of images with labels."""

    train: Images
    test: Images
    num_classes: int = 0

    def to(self, device: torch.device) -> "ImageData":
        """This data set for a device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A rank's part of a step, or of that part the samples that go through the model at once."""

    #: What the split gives for these samples: `Labelled`, or what the recipe's own data set is collated to.
    content: Any
    num_samples: int
    #: Of each sample. It sums over all samples of all ranks to the world size, since DDP averages gradients.
    weight: float
    #: Most samples that any rank has in the step, if another one has more.
    largest_share: int = 0

    def parts(self, size: int) -> list["Batch"]:
        """This batch in parts of up to `size` samples (0: in one part), which differ by one sample at most.

        All ranks have equally many parts unless `size` is 1, since SyncBatchNorm communicates in each forward pass.

        Raises:
            ConfigError: the content cannot be cut.
        """
        count = min(num_parts(max(self.num_samples, self.largest_share), size), self.num_samples)
        if count == 1:
            return [self]
        pieces = [share(self.num_samples, rank=part, world_size=count) for part in range(count)]
        return [
            Batch(content=self._cut(self.content, piece), num_samples=piece.stop - piece.start, weight=self.weight)
            for piece in pieces
        ]

    def _cut(self, value: Any, piece: slice) -> Any:
        if isinstance(value, torch.Tensor) and value.ndim and len(value) == self.num_samples:
            return value[piece]
        if isinstance(value, Mapping):
            return {key: self._cut(item, piece) for key, item in value.items()}
        if isinstance(value, list | tuple):
            if len(value) == self.num_samples and not any(isinstance(item, torch.Tensor) for item in value):
                return value[piece]
            items = [self._cut(item, piece) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        raise ConfigError(
            f"config: microBatchSize is set, but a batch of {self.num_samples} samples contains {type(value).__name__},"
            " which cannot be cut into parts; collate to tensors whose first dimension counts samples"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """One rank's part of each training step: a function of the step, so batches may be asked for in any order."""

    split: Images
    sampling: Sampling
    rank: int
    world_size: int

    def batch(self, step: int) -> Batch:
        """The rank's samples of the step, augmented."""
        ids_B, _ = self.part(step)
        return self.of(step, self.split.augmented(ids_B, seed=self.sampling.seed, epoch=self.sampling.epoch_of(step)))

    def part(self, step: int) -> tuple[torch.Tensor, float]:
        """The ids of the rank's samples of the step, and the weight of each.

        In a step of fewer samples than ranks some ranks have none. They take one sample of weight 0, since every rank
        must join the all-reduce.
        """
        global_ids = self.sampling.global_batch(step)
        ids_B = global_ids[share(len(global_ids), rank=self.rank, world_size=self.world_size)]
        if len(ids_B) == 0:
            return global_ids[:1], 0.0
        return ids_B, self.world_size / len(global_ids)

    def of(self, step: int, content: Any) -> Batch:
        """The batch of the step, whose samples are the content."""
        ids_B, weight = self.part(step)
        largest = share(len(self.sampling.global_batch(step)), rank=0, world_size=self.world_size).stop
        return Batch(content=content, num_samples=len(ids_B), weight=weight, largest_share=largest)
