"""Small images, all decoded once and kept on the device: data sets of one image size that fit there."""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import PIL
import torch
from PIL import Image, features

from ddpjob_ranks.cpus import cpus_of_this_rank
from ddpjob_ranks.errors import ConfigError
from ddpjob_recipes.cache import Tensors, cached, say
from ddpjob_recipes.decoding import decoders
from ddpjob_recipes.folder import EncodedImages, Splits
from ddpjob_recipes.pack import open_images
from ddpjob_trainer.config import ResolvedConfig
from ddpjob_trainer.data import ImageData, Preparation, Split, fingerprint_of, probed

#: What the tensors in the cache are. Raise it if `_decode` changes.
FORMAT = 1
#: Names of skipped images in one line of the log.
MAX_NAMED = 10


def load(path: Path, config: ResolvedConfig, *, preparation: Preparation) -> ImageData:
    """Both splits of an image folder or packed file.

    Raises:
        ConfigError: it is not laid out as expected, or an image cannot be decoded or differs in size.
    """
    splits = open_images(path)
    tensors = cached(partial(_identity, splits, config), partial(_decode, splits, config))
    _say_what_is_skipped(splits, tensors)
    return ImageData(
        train=_split(splits.train, tensors["train_samples"], tensors["train_images"], preparation),
        test=_split(splits.test, tensors["test_samples"], tensors["test_images"], preparation),
        num_classes=len(splits.classes),
    )


def _identity(splits: Splits, config: ResolvedConfig) -> str:
    """The hash of all encoded images, of what decodes them, and of what may be skipped."""
    versions = (PIL.__version__, *map(features.version, ("jpg", "zlib")))
    digest = hashlib.sha256(repr((FORMAT, versions, config.max_unreadable_images)).encode())
    with ThreadPoolExecutor(cpus_of_this_rank(os.environ)) as pool:
        for images in (splits.train, splits.test):
            digest.update(len(images.labels).to_bytes(8, "little"))
            for one in pool.map(partial(_hash, images), range(len(images.labels)), chunksize=256):
                digest.update(one)
    return digest.hexdigest()


def _hash(images: EncodedImages, sample: int) -> bytes:
    return hashlib.sha256(images.read(sample)).digest()


def _decode(splits: Splits, config: ResolvedConfig) -> Tensors:
    """The images of both splits, and which sample each of them is."""
    train, test = decoders(splits, config.max_unreadable_images)
    with ThreadPoolExecutor(cpus_of_this_rank(os.environ)) as pool:  # decoding releases the GIL
        # In the place of a training image that cannot be decoded is the next one; a held-out one is left out.
        shown = list(pool.map(partial(train.decode_or_next, work=rgb), range(len(splits.train.labels)), chunksize=256))
        found = list(pool.map(partial(test.decode, work=rgb), range(len(splits.test.labels)), chunksize=256))
    kept = [sample for sample, image in enumerate(found) if image is not None]
    samples = [sample for sample, _ in shown]
    return {
        "train_images": _stack(splits.train, samples, [image for _, image in shown]),
        "train_samples": torch.tensor(samples),
        "test_images": _stack(splits.test, kept, [image for image in found if image is not None]),
        "test_samples": torch.tensor(kept),
    }


def _say_what_is_skipped(splits: Splits, tensors: Tensors) -> None:
    """Name the images that were skipped, which a run that reads the cache does not try to decode."""
    shown, kept = tensors["train_samples"].tolist(), set(tensors["test_samples"].tolist())
    skipped = [splits.train.name(sample) for sample, instead in enumerate(shown) if sample != instead]
    skipped += [splits.test.name(sample) for sample in range(len(splits.test.labels)) if sample not in kept]
    if skipped:
        more = f" and {len(skipped) - MAX_NAMED} more" if len(skipped) > MAX_NAMED else ""
        names = ", ".join(skipped[:MAX_NAMED]) + more
        say(f"data: {len(skipped)} skipped, since they cannot be decoded: {names}")


def _stack(images: EncodedImages, samples: Sequence[int], decoded: list[torch.Tensor]) -> torch.Tensor:
    for sample, image in zip(samples, decoded, strict=True):
        if image.shape != decoded[0].shape:
            raise ConfigError(
                f"data: {images.name(sample)} is {tuple(image.shape)} (channels, rows, columns), but"
                f" {images.name(samples[0])} is {tuple(decoded[0].shape)}; all images must be of one size"
            )
    return torch.stack(decoded)


def _split(images: EncodedImages, samples: torch.Tensor, decoded: torch.Tensor, preparation: Preparation) -> Split:
    return Split(
        images_NCHW=decoded,
        labels_N=torch.tensor(images.labels)[samples],
        preparation=preparation,
        stored_fingerprint=fingerprint_of(images.labels, map(images.read, probed(len(images.labels)))),
    )


def rgb(image: Image.Image) -> torch.Tensor:
    """One image, uint8 of shape (3, rows, columns)."""
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
