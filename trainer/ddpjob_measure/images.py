"""Images to measure on, in the layout that the image recipes read."""

import os
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from ddpjob_trainer import contract

#: Names the folder with `cifar10-jpeg.tar.xz`, as for the tests.
TEST_DATA = "DDPJOB_TEST_DATA"
ARCHIVE = "cifar10-jpeg.tar.xz"
NUM_CLASSES, TEST_PER_CLASS, SIZE = 10, 2, 32


def provide(folder: Path, *, num_train: int) -> tuple[Path, str]:
    """A folder of images and what is in it: DDPJOB_DATA_DIR, a part of the archive, or else random ones.

    Args:
        folder: An empty folder to put images in, where they have to be made.
        num_train: Least number of training images to put there, a multiple of 10 or more.
    """
    if given := os.environ.get(contract.DDPJOB_DATA_DIR):
        return Path(given), f"the images of {given}"
    per_class = -(-num_train // NUM_CLASSES)
    archive = Path(os.environ.get(TEST_DATA, ""), ARCHIVE)
    if os.environ.get(TEST_DATA) and archive.exists():
        _unpack(archive, folder, {"train": per_class, "test": TEST_PER_CLASS})
        return folder, f"CIFAR-10 (JPEG copy), {per_class * NUM_CLASSES} of its training images"
    _draw(folder, {"train": per_class, "test": TEST_PER_CLASS})
    return folder, f"{per_class * NUM_CLASSES} synthetic images of CIFAR-10's size (random pixels)"


def _unpack(archive: Path, folder: Path, num_by_split: dict[str, int]) -> None:
    """The first images of each class; the archive names them `<split>/<class>/<number>.jpg`, numbered from 0."""
    with tarfile.open(archive) as images:
        for member in images:
            path = Path(member.name)
            if member.isfile() and path.stem.isdigit() and int(path.stem) < num_by_split[path.parts[0]]:
                images.extract(member, folder, filter="data")


def _draw(folder: Path, num_by_split: dict[str, int]) -> None:
    generator = np.random.default_rng(0)
    for split, num in num_by_split.items():
        for label in range(NUM_CLASSES):
            target = folder / split / f"class-{label}"
            target.mkdir(parents=True)
            for index in range(num):
                pixels_HWC = generator.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)  # noqa: N806 - a shape
                Image.fromarray(pixels_HWC).save(target / f"{index:04}.png")
