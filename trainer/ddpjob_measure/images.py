"""Images to measure on, in the layout that the image recipes read."""

import contextlib
import os
import tarfile
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from ddpjob_measure.carry import ARCHIVE, TEST_DATA
from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError

NUM_CLASSES, SIZE = 10, 32
#: Recipes that bring their own, and one whose images are larger than those that are at hand here.
DIGITS, SYNTHETIC, LARGE = "digits", "resnet50-224-synthetic", "resnet50-224"
#: Held-out images where accuracy does not matter.
FEW = 20


@contextlib.contextmanager
def provided(recipes: Collection[str], *, num_train: int) -> Iterator[tuple[dict[str, str], str]]:
    """Images to time trainings of these recipes on: real ones, or else random pixels.

    Gives the environment in which trainings find them, and what they are. `num_train` is the least number of training
    images where they have to be made.

    Raises:
        ConfigError: images of that size are not for these recipes.
    """
    at_hand = os.environ.get(contract.DDPJOB_DATA_DIR) or archive()
    if at_hand or not _needed(recipes):
        with photographs(recipes, num_train=num_train, num_test=FEW) as found:
            yield found
        return
    with tempfile.TemporaryDirectory() as folder:
        _draw(Path(folder), {"train": _per_class(num_train), "test": _per_class(FEW)})
        what = f"{_per_class(num_train) * NUM_CLASSES} synthetic images of CIFAR-10's size (random pixels)"
        yield {contract.DDPJOB_DATA_DIR: folder}, what


@contextlib.contextmanager
def photographs(recipes: Collection[str], *, num_train: int, num_test: int) -> Iterator[tuple[dict[str, str], str]]:
    """The same of real images alone: those of DDPJOB_DATA_DIR, or a part of the archive.

    Raises:
        ConfigError: there are none, or not for these recipes.
    """
    if not _needed(recipes):
        yield {}, "the recipe's own"
        return
    if given := os.environ.get(contract.DDPJOB_DATA_DIR):
        yield {contract.DDPJOB_DATA_DIR: given}, f"the images of {given}"
        return
    packed = archive()
    if packed is None:
        raise ConfigError(
            f"no images: name a folder of them in {contract.DDPJOB_DATA_DIR}, or in {TEST_DATA} one that holds {ARCHIVE}"
        )
    num_by_split = {"train": _per_class(num_train), "test": _per_class(num_test)}
    num_images = {split: num * NUM_CLASSES for split, num in num_by_split.items()}
    with tempfile.TemporaryDirectory() as folder:
        _unpack(packed, Path(folder), num_by_split)
        what = f"CIFAR-10 (JPEG copy), {num_images['train']} training images, {num_images['test']} held out"
        yield {contract.DDPJOB_DATA_DIR: folder}, what


def archive() -> Path | None:
    """CIFAR-10 in the folder that TEST_DATA names; None if it is not there."""
    folder = os.environ.get(TEST_DATA)
    return found if folder and (found := Path(folder, ARCHIVE)).exists() else None


def _needed(recipes: Collection[str]) -> bool:
    """Whether any of them reads images. Raises ConfigError where it needs larger ones than there are."""
    if LARGE in recipes and not os.environ.get(contract.DDPJOB_DATA_DIR):
        raise ConfigError(
            f"{LARGE}: there are no photographs to measure on; name a folder of them in {contract.DDPJOB_DATA_DIR}, or"
            f" measure {SYNTHETIC}"
        )
    return not set(recipes) <= {DIGITS, SYNTHETIC}


def _per_class(num: int) -> int:
    return -(-num // NUM_CLASSES)


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
