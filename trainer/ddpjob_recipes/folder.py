"""Where encoded images come from: an image folder, or one packed file (see `pack`).

A folder holds `train/<class>/<any>.jpg` and `test/<class>/<any>.jpg` (or PNG; or `val` instead of `test`). Classes are
numbered in the order of their names, samples ordered by class, then by file name. Nothing is decoded here.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ddpjob_ranks.errors import ConfigError

SUFFIXES = {".jpg", ".jpeg", ".png"}
LAYOUT = "expected train/<class>/*.jpg and test/<class>/*.jpg (or val/) with the same classes in both"


class EncodedImages(Protocol):
    """A split of labelled, encoded images."""

    @property
    def labels(self) -> Sequence[int]:
        """The class of each sample."""

    def name(self, sample: int) -> str:
        """How messages name the sample."""

    def read(self, sample: int) -> bytes:
        """The content of the sample's image file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """The two splits of a data set."""

    train: EncodedImages
    test: EncodedImages
    classes: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFiles:
    """Images in files of their own.

    Their paths are one array, since processes that are forked share its memory. They would not share a million objects of
    Python: each process writes to one when it reads it.
    """

    paths: NDArray[np.bytes_]
    labels: list[int]

    def name(self, sample: int) -> str:
        """The file's path."""
        return os.fsdecode(self.paths[sample])

    def read(self, sample: int) -> bytes:
        """The file's content."""
        return Path(self.name(sample)).read_bytes()


def open_folder(folder: Path) -> Splits:
    """Both splits of a folder.

    Raises:
        ConfigError: it is not laid out as expected.
    """
    test = folder / ("val" if (folder / "val").is_dir() and not (folder / "test").is_dir() else "test")
    classes = _class_names(folder / "train")
    if _class_names(test) != classes:
        raise ConfigError(f"data: {folder}/train and {test} hold different classes; {LAYOUT}")
    return Splits(train=_files(folder / "train", classes), test=_files(test, classes), classes=classes)


def _class_names(folder: Path) -> list[str]:
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if not names:
        raise ConfigError(f"data: found no class folders in {folder}; {LAYOUT}; set DDPJOB_DATA_DIR to the folder")
    return names


def _files(folder: Path, classes: list[str]) -> ImageFiles:
    found = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).iterdir())
        if path.suffix.lower() in SUFFIXES
    ]
    if not found:
        raise ConfigError(f"data: found no image in {folder}; {LAYOUT}")
    paths = np.array([os.fsencode(path) for path, _ in found])
    return ImageFiles(paths=paths, labels=[label for _, label in found])
