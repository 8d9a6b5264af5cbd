"""A recipe of your own: scikit-learn's digits and a small network. A job uses it as `recipe: own_recipe:digits_mlp`."""

from pathlib import Path

import torch
from pydantic import BaseModel, Field
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from ddpjob.recipe import Config, Data, Defaults, Recipe, adamw


class Settings(BaseModel):
    """What a job may set in `trainer.settings`."""

    width: int = Field(default=64, ge=1)
    dropout: float = Field(default=0.2, ge=0, lt=1)


def data(folder: Path, config: Config) -> Data:
    """Two map-style data sets. `folder` is the job's data directory, which these do not need."""
    pixels, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    held_out = torch.arange(len(labels)) % 5 == 4
    train, test = (TensorDataset(pixels[part].float() / 16, labels[part]) for part in (~held_out, held_out))
    return Data(train=train, test=test)


def digits_mlp(settings: Settings) -> Recipe:
    """The recipe with these settings. Loss and metric are the defaults: cross-entropy and accuracy."""

    def model(data: Data) -> nn.Module:
        width = settings.width
        hidden = nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(settings.dropout)
        return nn.Sequential(*hidden, nn.Linear(width, 10))

    return Recipe(data=data, model=model, optimizer=adamw, defaults=Defaults(epochs=8, learning_rate=0.01), heavy=False)
