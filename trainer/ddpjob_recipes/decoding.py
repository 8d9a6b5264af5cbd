"""From an encoded image to pixels. One that cannot be decoded ends the job, unless the user allows to skip some."""

import sys
from collections.abc import Callable
from io import BytesIO
from mmap import mmap
from typing import TypeVar

from PIL import Image, UnidentifiedImageError

from ddpjob_ranks.errors import ConfigError
from ddpjob_recipes.folder import EncodedImages, Splits

Pixels = TypeVar("Pixels")
#: Makes pixels of an image that Pillow has opened.
Work = Callable[[Image.Image], Pixels]


def decoders(splits: Splits, max_unreadable: int) -> "tuple[Decoder, Decoder]":
    """Those of the training split and of the held-out one, which together skip up to `max_unreadable` images."""
    num_train, num_test = len(splits.train.labels), len(splits.test.labels)
    unreadable = mmap(-1, num_train + num_test)
    return (
        Decoder(splits.train, unreadable, first=0, max_unreadable=max_unreadable),
        Decoder(splits.test, unreadable, first=num_train, max_unreadable=max_unreadable),
    )


class Decoder:
    """Decodes the images of a split and skips those that cannot be decoded, up to `max_unreadable` of them.

    Threads may share it, and so may processes that are forked: `unreadable` is memory with one byte for each image, from
    `first` on for those of this split, which is 1 where an image cannot be decoded.
    """

    def __init__(self, images: EncodedImages, unreadable: mmap, *, first: int, max_unreadable: int) -> None:
        self.images = images
        self._unreadable = unreadable
        self._first = first
        self._max_unreadable = max_unreadable

    def decode(self, sample: int, work: Work[Pixels]) -> Pixels | None:
        """The sample's pixels; None if it cannot be decoded and is skipped.

        Raises:
            ConfigError: it cannot be decoded, and as many as allowed are skipped already.
            OSError: the storage does not give it, which ends this attempt and not the job.
        """
        encoded = self.images.read(sample)
        try:
            with Image.open(BytesIO(encoded)) as image:
                return work(image)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a damaged file makes Pillow raise OSError, ValueError or SyntaxError
            self._skip(sample, error)
            return None

    def decode_or_next(self, sample: int, work: Work[Pixels]) -> tuple[int, Pixels]:
        """The sample's pixels, or those of the first sample after it that can be decoded; and which sample that is.

        Raises:
            ConfigError, OSError: as `decode`; or no image can be decoded.
        """
        num_samples = len(self.images.labels)
        for candidate in (*range(sample, num_samples), *range(sample)):
            if (pixels := self.decode(candidate, work)) is not None:
                return candidate, pixels
        raise ConfigError(f"data: none of {num_samples} images can be decoded, {self.images.name(sample)} among them")

    def _skip(self, sample: int, error: Exception) -> None:
        """Log an image that cannot be decoded, the first time it is met."""
        known = self._unreadable[self._first + sample]
        self._unreadable[self._first + sample] = 1
        number = self._unreadable[:].count(1)
        # Pillow's own text of that names the address of an object, so it would differ between ranks.
        reason = "its format is unknown" if isinstance(error, UnidentifiedImageError) else error
        text = f"data: {self.images.name(sample)} cannot be decoded: {reason}"
        if number > self._max_unreadable:
            skipped = "1 other was" if self._max_unreadable == 1 else f"{self._max_unreadable} others were"
            others = f"{skipped} skipped; " if self._max_unreadable else ""
            raise ConfigError(
                f"{text}; {others}replace or remove it, or set maxUnreadableImages to the number of images to skip"
            ) from error
        if not known:
            print(f"{text}; skipped ({number} of {self._max_unreadable} allowed)", file=sys.stderr, flush=True)
