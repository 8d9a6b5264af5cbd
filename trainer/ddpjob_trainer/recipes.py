"""What a recipe consists of, and how one is found by its name.

The built-in recipes are in the package `ddpjob_recipes`, which imports this one, never the other way round. A user's
recipe is found in the same way. What of this is public is in `ddpjob.recipe`.
"""

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import torch
from pydantic import BaseModel
from torch import nn

from ddpjob_ranks.errors import ConfigError
from ddpjob_session.progress import check_metrics
from ddpjob_session.report import TRAINING_VALUES
from ddpjob_trainer import optim, recipe_names
from ddpjob_trainer.config import Defaults, ResolvedConfig, TrainerConfig, as_recorded, checked_settings, parse_config
from ddpjob_trainer.data import Batch, ImageData
from ddpjob_trainer.loading import Data
from ddpjob_trainer.losses import cross_entropy, weighted
from ddpjob_trainer.metrics import Metric, accuracy


def call_with_inputs(model: nn.Module, batch: Any) -> Any:
    """The outputs for a batch of (inputs, ...)."""
    return model(batch[0])


def stays(_: nn.Module, done: float) -> None:
    """The model is the same in each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What to train, on what data, and how. Everything but `data` and `model` has a default, for classifiers.

    A *batch* is what the data set's samples are collated to: for samples that are pairs, the tuple (inputs, labels).
    """

    #: The data, from the job's data directory. May raise ConfigError.
    data: Callable[[Path, ResolvedConfig], Data | ImageData]
    #: The network for what `data` returned, with random weights of the current torch seed, the same on all ranks.
    #: Evaluations and checkpoints use rank 0's buffers: a network whose forward pass reads buffers in training must keep
    #: them equal on all ranks.
    model: Callable[[Any], nn.Module]
    #: The values of the settings that a user does not set.
    defaults: Defaults = field(default_factory=Defaults)
    #: The model's outputs for a batch.
    forward: Callable[[nn.Module, Any], Any] = call_with_inputs
    #: The loss of (outputs, batch): one value for each sample, or their mean. The gradient is that of the mean over the
    #: samples of all ranks, whatever the share of each.
    loss: Callable[[Any, Any], torch.Tensor] = cross_entropy
    #: What an evaluation computes, by name: each makes a new metric.
    metrics: Mapping[str, Callable[[], Metric]] = field(default_factory=lambda: {"accuracy": accuracy})
    #: The metric that chooses the best checkpoint and that is shown. By default the first one.
    best: str = ""
    #: Whether the best checkpoint is that of the largest value.
    larger_is_better: bool = True
    optimizer: Callable[[nn.Module, ResolvedConfig], torch.optim.Optimizer] = optim.sgd
    #: The learning rate after the warm-up, as a share of its peak, by the share of steps done.
    schedule: Callable[[float], float] = optim.cosine
    #: Called before each step with the model and the share of steps done, from 0 to 1. It may fix a layer early, but each
    #: parameter must still get a gradient, if only zeros. A compiled model is compiled as at both ends before training.
    before_step: Callable[[nn.Module, float], None] = stays
    #: Another `forward` for the last evaluation, which may see each sample in several views.
    test_time_forward: Callable[[nn.Module, Any], Any] | None = None
    #: How that differs from one plain view of each sample; the log adds it to the result.
    test_time_note: str = ""
    #: CPU threads beyond which this model gains nothing.
    max_threads: int = 256
    #: Whether the fast profile may compute in bfloat16 and channels_last, and compile: no gain for tiny networks.
    heavy: bool = True

    @property
    def headline(self) -> str:
        """The name of the metric that is shown."""
        return self.best or next(iter(self.metrics))

    def loss_of(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """This rank's loss, whose mean over ranks is the mean over the step's samples, however they are shared out."""
        return weighted(self.loss(self.forward(model, batch.content), batch.content), batch)


def load(config: TrainerConfig, *, world_size: int = 1) -> tuple[Recipe, ResolvedConfig]:
    """The recipe, and the configuration on that many ranks with its defaults for what is not set, those of its settings included.

    The name is a short one, or `module:object`. The object is a Recipe, or a function that makes one.

    Raises:
        ConfigError: there is no such recipe, the settings are not what its function's model accepts, or a value that follows
            from others is out of its bounds.
    """
    name, settings = config.recipe, config.settings
    module, attribute = recipe_names.locate(name)
    try:
        found: Any = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, but not what it imports
        raise ConfigError(
            f"config: recipe is {name!r}, and there is no module {error.name} in {Path.cwd()}, where this run started, nor"
            " in this environment; start it in the directory of that module, set PYTHONPATH to it, or install the module"
        ) from error
    if (model := _model_of_settings(found)) is not None:
        checked = checked_settings(model, settings)
        found, settings = found(checked), as_recorded(checked)
    elif settings and isinstance(found, Recipe):
        raise ConfigError(f"config: settings has {', '.join(settings)}, but recipe {name} has no settings; remove it")
    if not isinstance(found, Recipe):
        if found is None:
            raise ConfigError(
                f"config: recipe is {name!r}, but module {module} has no {attribute}{_similar(module, attribute)}"
            )
        raise ConfigError(
            f"config: recipe is {name!r}, which is of type {type(found).__name__}; expected an object of ddpjob.recipe.Recipe,"
            " or a function that makes one from its settings, whose only parameter is a pydantic model"
        )
    _check_metrics(name, found)
    resolved = config.resolve(found.defaults, world_size=world_size)
    return found, resolved.model_copy(update={"settings": settings})


def find(name: str) -> Recipe:
    """The recipe of that name, with the defaults of its settings."""
    return load(parse_config({"recipe": name}))[0]


def resolve(config: TrainerConfig) -> ResolvedConfig:
    """The configuration on one rank, with all defaults."""
    return load(config)[1]


def _similar(module: str, attribute: str) -> str:
    """The recipes and functions of the module that somebody may have meant."""
    known = vars(sys.modules[module]).items()
    names = [name for name, value in known if isinstance(value, Recipe) or inspect.isfunction(value)]
    close = difflib.get_close_matches(attribute, names)
    return f"; perhaps {' or '.join(close)} is meant" if close else "; define it there, or correct the name"


def _check_metrics(name: str, recipe: Recipe) -> None:
    """Check the metrics before a training, since the first evaluation may come after hours."""
    if recipe.headline not in recipe.metrics:
        raise ConfigError(f"recipe {name}: best is {recipe.best!r}; expected one of {', '.join(recipe.metrics)}")
    if taken := TRAINING_VALUES & recipe.metrics.keys():
        raise ConfigError(f"recipe {name}: the metric {min(taken)} has the name of a value of training; rename it")
    makers: Mapping[str, object] = recipe.metrics
    for metric, new in makers.items():
        if not callable(new):
            kind = type(new).__name__
            raise ConfigError(
                f"recipe {name}: metrics[{metric!r}] is a {kind}; expected a function that makes one, such as lambda: {kind}(...)"
            )
    try:
        check_metrics(recipe.metrics)
    except ValueError as error:
        raise ConfigError(f"recipe {name}: {error}") from None


def _model_of_settings(function: object) -> type[BaseModel] | None:
    """The pydantic model that is the type of the function's only parameter; None if it is none or has another signature."""
    if not inspect.isfunction(function):
        return None
    parameters = list(inspect.signature(function).parameters)
    kind = get_type_hints(function).get(parameters[0]) if len(parameters) == 1 else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
