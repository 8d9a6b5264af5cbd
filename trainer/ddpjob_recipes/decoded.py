"""Small images, all decoded once and kept on the device: data sets of one image size that fit there."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ddpjob_ranks.cpus import cpus_of_this_rank
from ddpjob_ranks.errors import ConfigError
from ddpjob_recipes.decoding import Decoder
from ddpjob_recipes.folder import EncodedImages
from ddpjob_recipes.pack import open_images
from ddpjob_trainer.config import ResolvedConfig
from ddpjob_trainer.data import DataSet, Preparation, Split, fingerprint_of, probed


def load(path: Path, config: ResolvedConfig, *, preparation: Preparation) -> DataSet:
    """Both splits of an image folder or packed file.

    Raises:
        ConfigError: it is not laid out as expected, or an image cannot be decoded or differs in size.
    """
    splits = open_images(path)
    decoder = Decoder(max_unreadable=config.max_unreadable_images)
    return DataSet(
        train=_train_split(splits.train, decoder, preparation),
        test=_test_split(splits.test, decoder, preparation),
        num_classes=len(splits.classes),
    )


def _train_split(images: EncodedImages, decoder: Decoder, preparation: Preparation) -> Split:
    """All samples, the next one in the place of each that cannot be decoded."""
    samples = range(len(images.labels))
    with ThreadPoolExecutor(cpus_of_this_rank(os.environ)) as pool:  # decoding releases the GIL
        found = list(pool.map(partial(decoder.decode_or_next, images, work=rgb), samples, chunksize=256))
    return _split(images, [sample for sample, _ in found], [image for _, image in found], preparation)


def _test_split(images: EncodedImages, decoder: Decoder, preparation: Preparation) -> Split:
    """The samples that can be decoded."""
    samples = range(len(images.labels))
    with ThreadPoolExecutor(cpus_of_this_rank(os.environ)) as pool:
        found = list(pool.map(partial(decoder.decode, images, work=rgb), samples, chunksize=256))
    kept = [sample for sample in samples if found[sample] is not None]
    return _split(images, kept, [image for image in found if image is not None], preparation)


def _split(
    images: EncodedImages, samples: Sequence[int], decoded: list[torch.Tensor], preparation: Preparation
) -> Split:
    for sample, image in zip(samples, decoded, strict=True):
        if image.shape != decoded[0].shape:
            raise ConfigError(
                f"data: {images.name(sample)} is {tuple(image.shape)} (channels, rows, columns), but"
                f" {images.name(samples[0])} is {tuple(decoded[0].shape)}; all images must be of one size"
            )
    return Split(
        images_NCHW=torch.stack(decoded),
        labels_N=torch.tensor([images.labels[sample] for sample in samples]),
        preparation=preparation,
        stored_fingerprint=fingerprint_of(images.labels, map(images.read, probed(len(images.labels)))),
    )


def rgb(image: Image.Image) -> torch.Tensor:
    """One image, uint8 of shape (3, rows, columns)."""
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
