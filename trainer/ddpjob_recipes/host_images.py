# ruff: noqa: N802, N803, N806, N815 - tensors carry their shape in their name
"""Images that do not fit on the device: the CPU decodes them for each step, ahead of it (see `FeedAhead`).

Threads, not processes: Pillow decodes and resizes outside the GIL, and a thread needs no /dev/shm, no copy between
processes, and gets no SIGTERM of its own. An image becomes its crop in one pass: JPEG is decoded at the smallest of its
scales that is large enough (1/2, 1/4, 1/8), then cropped and resized at once, with antialiasing. The bytes are copied to
the device from pinned memory and are normalised there.
"""

import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ddpjob_ranks.cpus import cpus_of_this_rank
from ddpjob_recipes.decoding import Decoder
from ddpjob_recipes.folder import EncodedImages
from ddpjob_trainer import randomness
from ddpjob_trainer.data import Labelled, Preparation, fingerprint_of, probed

#: Share of the image's area, and ratio of width to height, of a random crop (Szegedy et al. 2014, arXiv 1409.4842).
AREAS = (0.08, 1.0)
RATIOS = (3 / 4, 4 / 3)
TRIES = 10
#: Area, ratio, row, column.
NUMBERS_PER_TRY = 4
#: Of the shorter side, in evaluation: the middle 224 of 256 pixels.
CENTRE = 224 / 256
BATCHES_AHEAD = 2
CPU = torch.device("cpu")

#: Left, upper, right and lower edge in pixels, as Pillow counts them.
Box = tuple[float, float, float, float]
#: Which part of an image of that width and height to show, and whether mirrored.
View = Callable[[int, int], tuple[Box, bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostImages:
    """A split of encoded images, seen as squares of `size` pixels."""

    encoded: EncodedImages
    normalisation: Preparation
    size: int
    decoder: Decoder = field(default_factory=Decoder)
    target: torch.device = CPU
    threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(cpus_of_this_rank(os.environ), thread_name_prefix="decode")
    )

    def __len__(self) -> int:
        return len(self.encoded.labels)

    @property
    def device(self) -> torch.device:
        """Sample ids are needed on the CPU."""
        return CPU

    def to(self, device: torch.device) -> "HostImages":
        """This split for another device that trains."""
        return replace(self, target=device)

    def augmented(self, ids_B: torch.Tensor, *, seed: int, epoch: int) -> Labelled:
        """A random crop of each image, mirrored in half of the cases, by (seed, epoch, sample id)."""
        return self._finish(
            self._start(self._decode_or_next_into, ids_B.tolist(), random_views(ids_B, seed=seed, epoch=epoch))
        )

    def batches(self, part: slice, size: int) -> Iterator[Labelled]:
        """The middle of each image that can be decoded, in order."""
        pending: deque[_Pending] = deque()
        for start in range(part.start, part.stop, size):
            samples = list(range(start, min(start + size, part.stop)))
            pending.append(self._start(self._decode_into, samples, [central_view] * len(samples)))
            if len(pending) > BATCHES_AHEAD:
                yield self._finish(pending.popleft())
        yield from map(self._finish, pending)

    def fingerprint(self) -> str:
        """Of all labels, and of some images as they are stored: decoded ones may differ between processors."""
        return fingerprint_of(self.encoded.labels, self.threads.map(self.encoded.read, probed(len(self))))

    def _start(self, decode: "_DecodeInto", samples: list[int], views: list[View]) -> "_Pending":
        """Have the samples decoded, into one buffer."""
        pinned = self.target.type == "cuda"
        images_BHWC = torch.empty((len(samples), self.size, self.size, 3), dtype=torch.uint8, pin_memory=pinned)
        rows = zip(samples, views, images_BHWC.numpy(), strict=True)
        return _Pending(images_BHWC=images_BHWC, decoding=[self.threads.submit(decode, *row) for row in rows])

    def _finish(self, pending: "_Pending") -> Labelled:
        """Wait for the samples and hand those that were decoded to the device."""
        images_BHWC, samples = pending.images_BHWC, [future.result() for future in pending.decoding]
        found = [sample for sample in samples if sample is not None]
        if len(found) < len(samples):
            images_BHWC = images_BHWC[[sample is not None for sample in samples]]
        labels = [self.encoded.labels[sample] for sample in found]
        labels_B = torch.tensor(labels, dtype=torch.int64, pin_memory=self.target.type == "cuda")
        images_BCHW = images_BHWC.permute(0, 3, 1, 2).to(self.target, non_blocking=True)
        return self.normalisation.normalise(images_BCHW), labels_B.to(self.target, non_blocking=True)

    def _decode_into(self, sample: int, view: View, pixels_HWC: NDArray[np.uint8]) -> int | None:
        """Show the sample in the buffer; returns it, or None if it cannot be decoded."""
        image = self.decoder.decode(self.encoded, sample, partial(_seen, view=view, size=self.size))
        if image is None:
            return None
        pixels_HWC[:] = np.asarray(image)
        return sample

    def _decode_or_next_into(self, sample: int, view: View, pixels_HWC: NDArray[np.uint8]) -> int:
        """Show the sample, or the next one that can be decoded, in the buffer; returns which one."""
        found, image = self.decoder.decode_or_next(self.encoded, sample, partial(_seen, view=view, size=self.size))
        pixels_HWC[:] = np.asarray(image)
        return found


#: Decodes a sample, seen in this way, into the buffer; gives the sample that is there.
_DecodeInto = Callable[[int, View, NDArray[np.uint8]], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """A batch whose images are being decoded into its buffer."""

    images_BHWC: torch.Tensor
    decoding: list[Future[int | None]]


def _seen(image: Image.Image, *, view: View, size: int) -> Image.Image:
    """The view of the image as a square."""
    box, mirrored = view(*image.size)
    seen = _resized(image, box, size)
    return seen.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else seen  # numpy takes four times as long


def _resized(image: Image.Image, box: Box, size: int) -> Image.Image:
    """The box of the image as a square."""
    width, height = image.size
    left, upper, right, lower = box
    image.draft("RGB", (math.ceil(size * width / (right - left)), math.ceil(size * height / (lower - upper))))
    across, down = image.size[0] / width, image.size[1] / height  # below 1 where draft found a smaller scale
    scaled = (left * across, upper * down, right * across, lower * down)
    return image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box=scaled)


def random_views(ids_B: torch.Tensor, *, seed: int, epoch: int) -> list[View]:
    """How each sample is seen in an epoch."""

    def numbers_B(stream: int) -> torch.Tensor:
        return randomness.uniform_integers(ids_B, seed=seed, epoch=epoch, stream=stream)

    streams = range(randomness.CROP, randomness.CROP + TRIES * NUMBERS_PER_TRY)
    uniforms = (torch.stack([numbers_B(stream) for stream in streams], dim=1).double() / 2**32).tolist()
    mirrored = (numbers_B(randomness.FLIP) % 2 == 1).tolist()

    def view(sample: int) -> View:
        return lambda width, height: (random_box(width, height, uniforms[sample]), mirrored[sample])

    return [view(sample) for sample in range(len(uniforms))]


def random_box(width: int, height: int, uniforms: list[float]) -> Box:
    """A box of random area, shape and position: the first of the tries that is within the image, else its middle.

    Args:
        width: Of the image, in pixels.
        height: Of the image, in pixels.
        uniforms: Numbers in [0, 1), NUMBERS_PER_TRY for each of the tries.
    """
    for first in range(0, len(uniforms), NUMBERS_PER_TRY):
        for_area, for_ratio, for_row, for_column = uniforms[first : first + NUMBERS_PER_TRY]
        area = width * height * (AREAS[0] + for_area * (AREAS[1] - AREAS[0]))
        ratio = RATIOS[0] * (RATIOS[1] / RATIOS[0]) ** for_ratio
        across, down = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if across <= width and down <= height:
            left, upper = for_column * (width - across), for_row * (height - down)
            return left, upper, left + across, upper + down
    return central_box(width, height, share=1.0)


def central_box(width: int, height: int, *, share: float) -> Box:
    """The largest square in the middle, or that share of its side."""
    side = share * min(width, height)
    left, upper = (width - side) / 2, (height - side) / 2
    return left, upper, left + side, upper + side


def central_view(width: int, height: int) -> tuple[Box, bool]:
    """How an image is seen in evaluation."""
    return central_box(width, height, share=CENTRE), False
