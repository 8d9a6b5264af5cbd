"""A recipe for tests: samples with noise of all three generators, dropout and BatchNorm. As `recipe=noisy_recipe:noisy`."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import nn

from ddpjob.recipe import Config, Data, Defaults, Mean, Recipe, adamw, cross_entropy
from ddpjob_recipes.digits import load


class Settings(BaseModel):
    """Of the recipe."""

    width: int = 32
    dropout: float = 0.3


class Noisy(torch.utils.data.Dataset[Any]):
    """Digits with a random share of noise and a random brightness."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, sample: int) -> dict[str, torch.Tensor]:
        """One image, with its label."""
        noise = random.uniform(0, 1) * torch.rand(64)  # noqa: S311 - no secret
        brightness = float(np.random.uniform(0.8, 1.2))
        return {"image": brightness * self.images[sample].flatten() / 16 + noise / 10, "label": self.labels[sample]}


def data(folder: Path, config: Config) -> Data:
    """The digits."""
    digits: Any = load(folder, config)
    train, test = (Noisy(split.images_NCHW, split.labels_N) for split in (digits.train, digits.test))
    return Data(train=train, test=test)


def as_pair(batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """What losses and metrics of ddpjob take."""
    return batch["image"], batch["label"]


def loss(outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """For each sample."""
    return cross_entropy(outputs, as_pair(batch), label_smoothing=0.1)


def correct(outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """For each sample."""
    return outputs.argmax(dim=1) == batch["label"]


def noisy(settings: Settings) -> Recipe:
    """With a loss and metrics of its own."""

    def model(_: Data) -> nn.Module:
        hidden = nn.Linear(64, settings.width), nn.BatchNorm1d(settings.width), nn.ReLU(), nn.Dropout(settings.dropout)
        return nn.Sequential(*hidden, nn.Linear(settings.width, 10))

    return Recipe(
        data=data,
        model=model,
        forward=lambda network, batch: network(batch["image"]),
        loss=loss,
        metrics={"error": lambda: Mean(loss), "share": lambda: Mean(correct, percent=True)},
        best="error",
        larger_is_better=False,
        optimizer=adamw,
        defaults=Defaults(epochs=2, global_batch_size=204, learning_rate=0.01, clip_gradient_norm=1.0, ema_decay=0.8),
        heavy=False,
    )
