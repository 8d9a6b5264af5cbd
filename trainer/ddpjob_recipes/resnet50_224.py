# ruff: noqa: N806 - tensors carry their shape in their name
"""Recipes `resnet50-224` and `resnet50-224-synthetic`: ResNet-50 at 224 pixels, as for ImageNet.

The first reads an image folder or packed file of any size; the second has random images on the device, to measure
everything but the data.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torchvision.models import resnet50

from ddpjob_recipes.decoding import decoders
from ddpjob_recipes.pack import open_images
from ddpjob_recipes.photographs import Photographs
from ddpjob_trainer.config import Defaults, ResolvedConfig
from ddpjob_trainer.data import ImageData, Labelled, Preparation, Split
from ddpjob_trainer.loading import Data
from ddpjob_trainer.losses import cross_entropy
from ddpjob_trainer.recipes import Recipe, call_with_inputs

SIZE = 224
#: Mean and standard deviation of ImageNet's training images, times 255 (0.485, 0.456, 0.406; 0.229, 0.224, 0.225).
IMAGENET = Preparation(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375), max_shift=0, flip="random")
SYNTHETIC_TRAIN, SYNTHETIC_TEST, SYNTHETIC_CLASSES = 2048, 256, 1000


def load(path: Path, config: ResolvedConfig) -> Data:
    """Both splits, decoded as they are used. Raises ConfigError where the path is not laid out as expected."""
    splits = open_images(path)
    train, test = (
        Photographs(decoder=decoder, classes=splits.classes, size=SIZE, training=training)
        for decoder, training in zip(decoders(splits, config.max_unreadable_images), (True, False), strict=True)
    )
    return Data(train=train, test=test, collate=train.collate)


def load_synthetic(_: Path, __: ResolvedConfig) -> ImageData:
    """Random pixels and labels, the same each time."""
    generator = torch.Generator().manual_seed(0)

    def split(num_samples: int) -> Split:
        images_NCHW = torch.randint(0, 256, (num_samples, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator)
        labels_N = torch.randint(0, SYNTHETIC_CLASSES, (num_samples,), generator=generator)
        return Split(images_NCHW=images_NCHW, labels_N=labels_N, preparation=IMAGENET)

    return ImageData(train=split(SYNTHETIC_TRAIN), test=split(SYNTHETIC_TEST), num_classes=SYNTHETIC_CLASSES)


def resnet(num_classes: int) -> nn.Module:
    """ResNet-50; each residual branch starts at zero (Goyal et al. 2017, section 5.1)."""
    network: nn.Module = resnet50(num_classes=num_classes, zero_init_residual=True)
    return network


def forward(model: nn.Module, batch: Labelled) -> torch.Tensor:
    """Logits of a batch of bytes, which the device normalises."""
    images_BHWC, _ = batch
    logits_BK: torch.Tensor = model(IMAGENET.normalise(images_BHWC.permute(0, 3, 1, 2)))
    return logits_BK


#: Goyal et al. 2017 (arXiv 1706.02677), section 5.1.
DEFAULTS = Defaults(
    epochs=90, global_batch_size=256, learning_rate=0.1, warmup_epochs=5, weight_decay=1e-4, momentum=0.9
)
resnet50_224 = Recipe(
    defaults=DEFAULTS,
    data=load,
    model=lambda data: resnet(len(data.train.classes)),
    forward=forward,
    loss=partial(cross_entropy, label_smoothing=0.1),
)
resnet50_224_synthetic = replace(
    resnet50_224,
    defaults=replace(DEFAULTS, epochs=10, warmup_epochs=0),
    data=load_synthetic,
    model=lambda data: resnet(data.num_classes),
    forward=call_with_inputs,
)
