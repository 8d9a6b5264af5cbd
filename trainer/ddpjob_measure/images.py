"""Images to measure on, in the layout that the image recipes read."""

import os
import tarfile
from collections.abc import Collection
from pathlib import Path

import numpy as np
from PIL import Image

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError

#: Names the folder with `cifar10-jpeg.tar.xz`, as for the tests.
TEST_DATA = "DDPJOB_TEST_DATA"
ARCHIVE = "cifar10-jpeg.tar.xz"
NUM_CLASSES, SIZE = 10, 32
#: Recipes that bring their own, and one whose images are larger than those that are at hand here.
DIGITS, SYNTHETIC, LARGE = "digits", "resnet50-224-synthetic", "resnet50-224"
#: Held-out images where nobody asks how well they are told apart.
FEW = 20


def provide(folder: Path, recipes: Collection[str], *, num_train: int) -> tuple[Path, str]:
    """A folder of images to time trainings of these recipes on and what is in it: real ones, or else random pixels.

    Args:
        folder: An empty folder to put images in, where they have to be made.
        recipes: Their names.
        num_train: Least number of training images to put there.

    Raises:
        ConfigError: images of that size are not for these recipes.
    """
    if os.environ.get(contract.DDPJOB_DATA_DIR) or _archive():
        return photographs(folder, recipes, num_train=num_train, num_test=FEW)
    _check_size(recipes)
    _draw(folder, {"train": _per_class(num_train), "test": _per_class(FEW)})
    return folder, f"{_per_class(num_train) * NUM_CLASSES} synthetic images of CIFAR-10's size (random pixels)"


def photographs(folder: Path, recipes: Collection[str], *, num_train: int, num_test: int) -> tuple[Path, str]:
    """The same of real images alone: those of DDPJOB_DATA_DIR, or a part of the archive.

    Raises:
        ConfigError: there are none, or not for these recipes.
    """
    _check_size(recipes)
    if given := os.environ.get(contract.DDPJOB_DATA_DIR):
        return Path(given), f"the images of {given}"
    archive = _archive()
    if archive is None:
        raise ConfigError(
            f"no images: name a folder of them in {contract.DDPJOB_DATA_DIR}, or in {TEST_DATA} one that holds {ARCHIVE}"
        )
    num_by_split = {"train": _per_class(num_train), "test": _per_class(num_test)}
    _unpack(archive, folder, num_by_split)
    told = {split: num * NUM_CLASSES for split, num in num_by_split.items()}
    return folder, f"CIFAR-10 (JPEG copy), {told['train']} training images, {told['test']} held out"


def _archive() -> Path | None:
    folder = os.environ.get(TEST_DATA)
    return archive if folder and (archive := Path(folder, ARCHIVE)).exists() else None


def _check_size(recipes: Collection[str]) -> None:
    if LARGE in recipes and not os.environ.get(contract.DDPJOB_DATA_DIR):
        raise ConfigError(
            f"{LARGE}: there are no photographs to measure on; name a folder of them in {contract.DDPJOB_DATA_DIR}, or"
            f" measure {SYNTHETIC}"
        )


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
