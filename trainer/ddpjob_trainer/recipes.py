# ruff: noqa: N803, N806 - tensors carry their shape in their name
"""What a recipe is made of, and where the built-in ones are found.

The recipes live in a package of their own, `ddpjob_recipes`, which imports this one and never the other way round:
they are found by name.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ddpjob_trainer import config, optim
from ddpjob_trainer.data import DataSet

#: The module that holds each recipe in its mapping RECIPES. Imported when asked for: torchvision alone takes as long to
#: load as the digits take to train.
MODULES: Mapping[config.Recipe, str] = {
    "digits": "ddpjob_recipes.digits",
    "resnet18-cifar10": "ddpjob_recipes.resnet_cifar10",
    "resnet50-cifar10": "ddpjob_recipes.resnet_cifar10",
    "speedrun-cifar10": "ddpjob_recipes.speedrun",
    "resnet50-224": "ddpjob_recipes.resnet50_224",
    "resnet50-224-synthetic": "ddpjob_recipes.resnet50_224",
}


def take_nothing(_: nn.Module, __: DataSet) -> None:
    """The weights start from random numbers alone."""


def predict(model: nn.Module, images_BCHW: torch.Tensor) -> torch.Tensor:
    """The logits of one view of each image, as it is."""
    logits_BK: torch.Tensor = model(images_BCHW)
    return logits_BK


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The parts that differ between recipes; the loop is the same for all."""

    load: Callable[[Path], DataSet]
    #: The network for a number of classes, with random weights of the current torch seed.
    model: Callable[[int], nn.Module]
    #: CPU threads beyond which this model gains nothing.
    max_threads: int = 256
    #: What the fresh network takes from the training data, the same on all ranks.
    initialise: Callable[[nn.Module, DataSet], None] = take_nothing
    optimizer: Callable[[nn.Module, config.TrainerConfig], torch.optim.Optimizer] = optim.make_optimizer
    #: The learning rate after warm-up, as a share of its peak, by the share of steps done.
    decay: Callable[[float], float] = optim.cosine
    #: Share of each target that is spread evenly over all classes (Szegedy et al. 2015).
    label_smoothing: float = 0.0
    #: Logits in evaluation; test-time augmentation, where a recipe has it, is in here and nowhere else.
    predict: Callable[[nn.Module, torch.Tensor], torch.Tensor] = predict
    #: Said beside each accuracy; empty for one plain view of each image.
    prediction: str = ""
    #: Whether the fast profile may compute in bfloat16 and channels_last, and compile: not worth it for tiny networks.
    heavy: bool = True


def find(name: config.Recipe) -> Recipe:
    """The recipe of that name."""
    recipe: Recipe = importlib.import_module(MODULES[name]).RECIPES[name]
    return recipe
