# ruff: noqa: N803, N806 - tensors carry their shape in their name
"""What a recipe consists of, and how one is found by its name.

The built-in recipes are in the package `ddpjob_recipes`, which imports this one, never the other way round. A user's
recipe is found in the same way, by `module:object`.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ddpjob_ranks.errors import ConfigError
from ddpjob_trainer import optim, recipe_names
from ddpjob_trainer.config import Defaults, ResolvedConfig, TrainerConfig
from ddpjob_trainer.data import Batch, DataSet
from ddpjob_trainer.losses import cross_entropy


def keep_random_weights(_: nn.Module, __: DataSet) -> None:
    """Leave the new network as it is."""


def predict(model: nn.Module, images_BCHW: torch.Tensor) -> torch.Tensor:
    """The logits of each image, without test-time augmentation."""
    logits_BK: torch.Tensor = model(images_BCHW)
    return logits_BK


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a recipe defines. The training loop is the same for all recipes."""

    #: The settings that a user does not set.
    defaults: Defaults
    #: Both splits, from the data directory. May raise ConfigError.
    load: Callable[[Path, ResolvedConfig], DataSet]
    #: The network for a number of classes, with random weights of the current torch seed. Evaluations and checkpoints use
    #: rank 0's buffers: a network whose forward pass reads buffers in training must keep them equal on all ranks.
    model: Callable[[int], nn.Module]
    #: CPU threads beyond which this model gains nothing.
    max_threads: int = 256
    #: Initialises the new network from the training data, with the same result on all ranks.
    initialise: Callable[[nn.Module, DataSet], None] = keep_random_weights
    optimizer: Callable[[nn.Module, ResolvedConfig], torch.optim.Optimizer] = optim.make_optimizer
    #: The learning rate after warm-up, as a share of its peak, by the share of steps done.
    decay: Callable[[float], float] = optim.cosine
    #: One loss for each sample of a batch, from the model's outputs.
    losses: Callable[[torch.Tensor, Batch], torch.Tensor] = cross_entropy
    #: Logits in evaluation. Test-time augmentation, if a recipe has it, is in here and nowhere else.
    predict: Callable[[nn.Module, torch.Tensor], torch.Tensor] = predict
    #: How `predict` differs from one plain view of each image; the log adds it to each accuracy.
    prediction: str = ""
    #: Whether the fast profile may compute in bfloat16 and channels_last, and compile: no gain for tiny networks.
    heavy: bool = True

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """This rank's loss, whose mean over ranks is the mean over the step's samples, however they are shared out."""
        return (self.losses(model(batch.images_BCHW), batch) * batch.weights_B).sum()


def find(name: str) -> Recipe:
    """The recipe of that name: a built-in one, or `module:object`.

    Raises:
        ConfigError: there is no such recipe.
    """
    module, attribute = recipe_names.locate(name)
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, but not what it imports
        raise ConfigError(
            f"config: recipe is {name!r}, and there is no module {error.name} in this image or environment; install it"
            " there, or set PYTHONPATH to its directory"
        ) from error
    if not isinstance(found, Recipe):
        raise ConfigError(
            f"config: recipe is {name!r}, and {attribute} of module {module} is {type(found).__name__}; expected an object"
            " of ddpjob_trainer.recipes.Recipe"
        )
    return found


def resolve(config: TrainerConfig, *, world_size: int = 1) -> ResolvedConfig:
    """The configuration with its recipe's defaults for what is not set, on that many ranks.

    Raises:
        ConfigError: there is no such recipe, or a value that follows from others is out of its bounds.
    """
    return config.resolve(find(config.recipe).defaults, world_size=world_size)
