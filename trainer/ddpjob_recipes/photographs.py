"""Images that do not fit on the device, as a map-style data set: workers decode them ahead of the step that they are for.

An image becomes its crop in one pass: JPEG is decoded at the smallest of its scales that is large enough (1/2, 1/4, 1/8),
then cropped and resized at once, with antialiasing. A batch goes to the device in bytes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from PIL import Image
from torch.utils.data import default_collate
from torchvision.transforms import RandomResizedCrop

from ddpjob_recipes.decoding import Decoder
from ddpjob_trainer.data import fingerprint_of, probed

#: Share of the image's area, and ratio of width to height, of a random crop (Szegedy et al. 2014, arXiv 1409.4842).
AREAS = [0.08, 1.0]
RATIOS = [3 / 4, 4 / 3]
#: Of the shorter side, in evaluation: the middle 224 of 256 pixels.
CENTRE = 224 / 256

#: Left, upper, right and lower edge in pixels, as Pillow counts them.
Box = tuple[float, float, float, float]
#: Pixels as uint8 of shape (rows, columns, 3), and the label.
Sample = tuple[torch.Tensor, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Photographs:
    """A split of encoded images, seen as squares of `size` pixels: in `training` at random, and then never without an image."""

    decoder: Decoder
    classes: Sequence[str]
    size: int
    training: bool

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def targets(self) -> Sequence[int]:
        """The class of each sample."""
        return self.decoder.images.labels

    @property
    def version(self) -> str:
        """The fingerprint of all labels and of some images as they are stored: decoded ones may differ between processors."""
        return fingerprint_of(self.targets, map(self.decoder.images.read, probed(len(self))))

    def __getitem__(self, sample: int) -> Sample | None:
        """A random crop, mirrored in half of the cases, or the middle of the image; None if that cannot be decoded.

        The numbers come from torch's generator.
        """
        if not self.training:
            central: torch.Tensor | None = self.decoder.decode(
                sample, partial(_seen, size=self.size, view=_in_the_middle)
            )
            return None if central is None else (central, self.targets[sample])
        shown, pixels = self.decoder.decode_or_next(sample, partial(_seen, size=self.size, view=_at_random))
        return pixels, self.targets[shown]

    def collate(self, samples: Sequence[Sample | None]) -> tuple[torch.Tensor, torch.Tensor]:
        """The samples that could be decoded: pixels (sample, row, column, channel) and labels."""
        if found := [sample for sample in samples if sample is not None]:
            pixels_BHWC, labels_B = default_collate(found)  # noqa: N806 - tensors carry their shape in their name
            return pixels_BHWC, labels_B
        return torch.empty((0, self.size, self.size, 3), dtype=torch.uint8), torch.empty(0, dtype=torch.int64)


def _at_random(image: Image.Image) -> tuple[Box, bool]:
    top, left, height, width = RandomResizedCrop.get_params(image, scale=AREAS, ratio=RATIOS)
    return (left, top, left + width, top + height), bool(torch.rand(()) < 0.5)


def _in_the_middle(image: Image.Image) -> tuple[Box, bool]:
    width, height = image.size
    side = CENTRE * min(width, height)
    left, upper = (width - side) / 2, (height - side) / 2
    return (left, upper, left + side, upper + side), False


def _seen(image: Image.Image, *, size: int, view: Callable[[Image.Image], tuple[Box, bool]]) -> torch.Tensor:
    """The part of the image that `view` chooses, as a square, mirrored if it says so."""
    (left, upper, right, lower), mirrored = view(image)
    width, height = image.size
    image.draft("RGB", (math.ceil(size * width / (right - left)), math.ceil(size * height / (lower - upper))))
    across, down = image.size[0] / width, image.size[1] / height  # below 1 where draft found a smaller scale
    box = (left * across, upper * down, right * across, lower * down)
    square = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box=box)
    if mirrored:
        square = square.transpose(Image.Transpose.FLIP_LEFT_RIGHT)  # numpy takes four times as long
    return torch.from_numpy(np.array(square))
