"""From an encoded image to pixels. One that cannot be decoded ends the job, unless the user allows to skip some."""

import sys
from collections.abc import Callable
from io import BytesIO
from threading import Lock
from typing import TypeVar

from PIL import Image

from ddpjob_ranks.errors import ConfigError
from ddpjob_recipes.folder import EncodedImages

Pixels = TypeVar("Pixels")
#: Makes pixels of an image that Pillow has opened.
Work = Callable[[Image.Image], Pixels]


class Decoder:
    """Decodes images and skips those that cannot be decoded, up to `max_unreadable` of them. Threads may share it."""

    def __init__(self, *, max_unreadable: int = 0) -> None:
        self._max_unreadable = max_unreadable
        self._unreadable: set[str] = set()
        self._lock = Lock()

    def decode(self, images: EncodedImages, sample: int, work: Work[Pixels]) -> Pixels | None:
        """The sample's pixels; None if it cannot be decoded and is skipped.

        Raises:
            ConfigError: it cannot be decoded, and as many as allowed are skipped already.
            OSError: the storage does not give it, which ends this attempt and not the job.
        """
        encoded = images.read(sample)
        try:
            with Image.open(BytesIO(encoded)) as image:
                return work(image)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a damaged file makes Pillow raise OSError, ValueError or SyntaxError
            self._skip(images.name(sample), error)
            return None

    def decode_or_next(self, images: EncodedImages, sample: int, work: Work[Pixels]) -> tuple[int, Pixels]:
        """The sample's pixels, or those of the first sample after it that can be decoded; and which sample that is.

        Raises:
            ConfigError, OSError: as `decode`; or no image can be decoded.
        """
        num_samples = len(images.labels)
        for candidate in (*range(sample, num_samples), *range(sample)):
            if (pixels := self.decode(images, candidate, work)) is not None:
                return candidate, pixels
        raise ConfigError(f"data: none of {num_samples} images can be decoded, {images.name(sample)} among them")

    def _skip(self, name: str, error: Exception) -> None:
        """Log an image that cannot be decoded, the first time it is met."""
        with self._lock:
            known = name in self._unreadable
            self._unreadable.add(name)
            number = len(self._unreadable)
        text = f"data: {name} cannot be decoded: {error}"
        if number > self._max_unreadable:
            others = f"{self._max_unreadable} others were skipped; " if self._max_unreadable else ""
            raise ConfigError(
                f"{text}; {others}replace or remove it, or set maxUnreadableImages to the number of images to skip"
            ) from error
        if not known:
            print(f"{text}; skipped ({number} of {self._max_unreadable} allowed)", file=sys.stderr, flush=True)
