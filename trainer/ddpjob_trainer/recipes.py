"""What a recipe is made of: a data set, its preparation and a model."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from ddpjob_trainer import config
from ddpjob_trainer.data import DataSet, Preparation


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The parts that differ between recipes; the loop is the same for all."""

    load: Callable[[Path], DataSet]
    preparation: Preparation
    model: Callable[[int], nn.Module]
    #: CPU threads beyond which this model gains nothing.
    max_threads: int


def find(name: config.Recipe) -> Recipe:
    """The recipe of that name."""
    # Imported when asked for: torchvision alone takes as long to load as the digits take to train.
    if name == "digits":
        from ddpjob_trainer.digits import RECIPE
    else:
        from ddpjob_trainer.resnet18_cifar10 import RECIPE
    return RECIPE
