# ruff: noqa: N806 - arrays carry their shape in their name
"""Recipe `resnet18-cifar10`: CIFAR-10 from an image folder, ResNet-18 with the stem for small images.

The folder holds `train/<class>/<any>.jpg` and `test/<class>/<any>.jpg` (PNG too), classes numbered in the order of
their names. Every rank decodes all images once and keeps them on its device as uint8 (train: 154 MB).
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchvision.models import resnet18

from ddpjob_trainer.config import ConfigError
from ddpjob_trainer.data import DataSet, Preparation, Split
from ddpjob_trainer.distributed import available_cpus
from ddpjob_trainer.recipes import Recipe

SUFFIXES = {".jpg", ".jpeg", ".png"}
LAYOUT = "expected train/<class>/*.jpg and test/<class>/*.jpg with the same classes in both"


def load(folder: Path) -> DataSet:
    """Both splits, samples ordered by class name, then by file name.

    Raises:
        ConfigError: the folder is not laid out as expected, or an image cannot be read or differs in size.
    """
    classes = _class_names(folder / "train")
    if _class_names(folder / "test") != classes:
        raise ConfigError(f"data: {folder}/train and {folder}/test hold different classes; {LAYOUT}")
    return DataSet(
        train=_load_split(folder / "train", classes),
        test=_load_split(folder / "test", classes),
        num_classes=len(classes),
    )


def _class_names(folder: Path) -> list[str]:
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if not names:
        raise ConfigError(f"data: found no class folders in {folder}; {LAYOUT}; set DDPJOB_DATA_DIR to the folder")
    return names


def _load_split(folder: Path, classes: list[str]) -> Split:
    files = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).iterdir())
        if path.suffix.lower() in SUFFIXES
    ]
    if not files:
        raise ConfigError(f"data: found no image in {folder}; {LAYOUT}")
    with ThreadPoolExecutor(available_cpus()) as pool:  # decoding releases the GIL
        images = list(pool.map(_decode, [path for path, _ in files], chunksize=256))
    for (path, _), image in zip(files, images, strict=True):
        if image.shape != images[0].shape:
            raise ConfigError(
                f"data: {path} is {tuple(image.shape)} (channels, rows, columns), but {files[0][0]} is"
                f" {tuple(images[0].shape)}; all images must be of one size"
            )
    return Split(images_NCHW=torch.stack(images), labels_N=torch.tensor([label for _, label in files]))


def _decode(path: Path) -> torch.Tensor:
    """One image, uint8 of shape (3, rows, columns)."""
    try:
        with Image.open(path) as image:
            pixels_HWC = np.array(image.convert("RGB"))
    except (OSError, ValueError) as error:  # Pillow's errors of format are OSErrors
        raise ConfigError(f"data: {path} cannot be decoded: {error}") from error
    return torch.from_numpy(pixels_HWC).permute(2, 0, 1)


def model(num_classes: int) -> nn.Module:
    """ResNet-18 (He et al. 2015) for 32x32: its 7x7 stride-2 stem and max-pooling would leave 8x8 at the first block."""
    network: nn.Module = resnet18(num_classes=num_classes)
    network.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    network.maxpool = nn.Identity()
    return network


RECIPE = Recipe(
    load=load,
    # Mean and standard deviation of CIFAR-10's training images, times 255 (0.4914, 0.4822, 0.4465; 0.2470, 0.2435, 0.2616).
    preparation=Preparation(mean=(125.3, 123.0, 113.9), std=(63.0, 62.1, 66.7), max_shift=4, flip=True),
    model=model,
    max_threads=256,
)
