# ruff: noqa: N806 - arrays carry their shape in their name
"""Small images, all decoded once and kept on the device: sets of one image size that fit there."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ddpjob_ranks.cpus import cpus_of_this_rank
from ddpjob_ranks.errors import ConfigError
from ddpjob_recipes.folder import EncodedImages
from ddpjob_recipes.pack import open_images
from ddpjob_trainer.data import DataSet, Preparation, Split


def load(path: Path, *, preparation: Preparation) -> DataSet:
    """Both splits of an image folder or packed file.

    Raises:
        ConfigError: it is not laid out as expected, or an image cannot be decoded or differs in size.
    """
    splits = open_images(path)
    return DataSet(
        train=_decode_all(splits.train, preparation),
        test=_decode_all(splits.test, preparation),
        num_classes=len(splits.classes),
    )


def _decode_all(images: EncodedImages, preparation: Preparation) -> Split:
    with ThreadPoolExecutor(cpus_of_this_rank(os.environ)) as pool:  # decoding releases the GIL
        decoded = list(pool.map(partial(decode, images), range(len(images.labels)), chunksize=256))
    for sample, image in enumerate(decoded):
        if image.shape != decoded[0].shape:
            raise ConfigError(
                f"data: {images.name(sample)} is {tuple(image.shape)} (channels, rows, columns), but {images.name(0)}"
                f" is {tuple(decoded[0].shape)}; all images must be of one size"
            )
    return Split(images_NCHW=torch.stack(decoded), labels_N=torch.tensor(images.labels), preparation=preparation)


def decode(images: EncodedImages, sample: int) -> torch.Tensor:
    """One image, uint8 of shape (3, rows, columns)."""
    encoded = images.read(sample)  # an OSError of storage ends the attempt, not the job: it may be back later
    try:
        with Image.open(BytesIO(encoded)) as image:
            pixels_HWC = np.array(image.convert("RGB"))
    except (OSError, ValueError) as error:  # Pillow's errors of format are OSErrors
        raise ConfigError(f"data: {images.name(sample)} cannot be decoded: {error}") from error
    return torch.from_numpy(pixels_HWC).permute(2, 0, 1)
