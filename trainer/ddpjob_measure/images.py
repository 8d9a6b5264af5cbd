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
def provided(
    recipes: Collection[str], *, num_train: int, num_test: int = FEW, must_be_real: bool = False
) -> Iterator[tuple[dict[str, str], str]]:
    """Images to train these recipes on: those of DDPJOB_DATA_DIR, or a part of the archive, or else random pixels.

    Gives the environment in which trainings find them, and what they are. There are at least `num_train` and `num_test`,
    except in a folder that the user named.

    Raises:
        ConfigError: images of that size are not for these recipes, or there are none that are real.
    """
    if set(recipes) <= {DIGITS, SYNTHETIC}:
        yield {}, "the recipe's own"
        return
    if given := os.environ.get(contract.DDPJOB_DATA_DIR):
        yield {contract.DDPJOB_DATA_DIR: given}, f"the images of {given}"
        return
    _check(recipes, must_be_real=must_be_real)
    num_by_split = {"train": -(-num_train // NUM_CLASSES), "test": -(-num_test // NUM_CLASSES)}
    num_images = {split: num * NUM_CLASSES for split, num in num_by_split.items()}
    with tempfile.TemporaryDirectory() as folder:
        if packed := archive():
            _unpack(packed, Path(folder), num_by_split)
            what = f"CIFAR-10 (JPEG copy), {num_images['train']} training images, {num_images['test']} held out"
        else:
            _draw(Path(folder), num_by_split)
            what = f"{num_images['train']} synthetic images of CIFAR-10's size (random pixels)"
        yield {contract.DDPJOB_DATA_DIR: folder}, what


def _check(recipes: Collection[str], *, must_be_real: bool) -> None:
    if LARGE in recipes:
        raise ConfigError(
            f"{LARGE}: there are no photographs to measure on; name a folder of them in {contract.DDPJOB_DATA_DIR}, or"
            f" measure {SYNTHETIC}"
        )
    if must_be_real and archive() is None:
        raise ConfigError(
            f"no images: name a folder of them in {contract.DDPJOB_DATA_DIR}, or in {TEST_DATA} one that holds {ARCHIVE}"
        )


def archive() -> Path | None:
    """CIFAR-10 in the folder that TEST_DATA names; None if it is not there."""
    folder = os.environ.get(TEST_DATA)
    return found if folder and (found := Path(folder, ARCHIVE)).exists() else None


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
