"""The state of a built-in training: model, optimizer and step, with what identifies the training that they belong to.

The order of samples, augmentation, dropout and the learning rate have no state: they are functions of the step.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from pydantic.alias_generators import to_camel
from torch import nn
from torch.optim.swa_utils import AveragedModel

from ddpjob_ranks.errors import ConfigError
from ddpjob_session.state import State, Stateful, from_bytes
from ddpjob_trainer import export, optim
from ddpjob_trainer.config import ResolvedConfig

#: What must not change between a checkpoint and the run that resumes from it: with another value the step number would
#: belong to another training. So with the settings of the recipe. World size, epochs, learning rate and profile may change.
FIXED = ("recipe", "global_batch_size", "seed", "momentum", "weight_decay")

#: Names of the fingerprints of the two splits. A resume needs the same training data; other held-out data are reported.
TRAINING_DATA, HELD_OUT_DATA = "data", "held-out data"


class TrainingState(State):
    """Model and optimizer after `step` steps. `data` has the fingerprints of the splits, by name."""

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: ResolvedConfig,
        data: Mapping[str, str],
        world_size: int = 1,
        average: AveragedModel | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        parts: dict[str, Stateful] = {"model": model, "optimizer": optimizer}
        if average is not None:
            parts["average"] = average
        if scaler is not None and scaler.is_enabled():
            parts["scaler"] = scaler
            optim.begin_momentum(optimizer)
        super().__init__(parts, program=f"recipe {config.recipe}", world_size=world_size)
        self.average = average
        self.scaler = scaler or torch.amp.GradScaler(enabled=False)
        self.model = model
        self.optimizer = optimizer
        self.config = config
        self.data = data

    @property
    def evaluated(self) -> nn.Module:
        """What is evaluated and exported: the model, or the moving average of its weights."""
        return self.model if self.average is None else self.average.module

    def content(self) -> dict[str, Any]:
        """The whole state as a checkpoint holds it; the tensors are those of model and optimizer, not copies."""
        return {**super().content(), "config": self.config.model_dump(), "data": dict(self.data)}

    def load(self, content: dict[str, Any]) -> str:
        """Load what `content` returned. Returns a description for the log: who saved it, and whether evaluations changed.

        Raises:
            ConfigError: it is the state of another training.
        """
        if "config" not in content:
            raise ConfigError(
                f"checkpoint at step {content['step']}: it was saved by a script with a session, not by a recipe; set another"
                " place for checkpoints (DDPJOB_CHECKPOINT_DIR), or rename the job"
            )
        saved_data = content.get("data", self.data)  # a checkpoint of release 0.1 has no fingerprints of its data
        saved, now = _identity(content["config"], saved_data), _identity(self.config.model_dump(), self.data)
        for name, value in now.items():
            # As text, too, since a NaN is not equal to itself.
            if name in saved and saved[name] != value and json.dumps(saved[name]) != json.dumps(value):
                back = "give the training that data again (DDPJOB_DATA_DIR)" if name == TRAINING_DATA else "set it back"
                raise ConfigError(
                    f"checkpoint at step {content['step']}: {name} was {saved[name]!r} when it was saved and is"
                    f" {value!r} now; {back}, or rename the job or remove its checkpoint folder to start from step 0"
                )
        self._add_new_parts(content)
        saved_by = f"{super().load(content)} under profile {content['config']['profile']}"
        for key, value in self.config.model_dump(exclude={*FIXED, "settings"}).items():
            if (before := content["config"].get(key, value)) != value:
                saved_by += f"; {to_camel(key)} was {before} and is {value}"
        for name in sorted(saved.keys() ^ now.keys()):  # the recipe has changed
            saved_by += f"; {name} is {'new' if name in now else 'gone'} and was not compared"
        if (before := saved_data.get(HELD_OUT_DATA)) != (held_out := self.data.get(HELD_OUT_DATA)):
            saved_by += (
                f"; the held-out data have changed from {before} to {held_out}, so accuracies are not comparable"
            )
        return saved_by

    def _add_new_parts(self, content: dict[str, Any]) -> None:
        """Add the parts that this run has and the one that saved had not, as they are before their first step.

        GPUs without bfloat16, where `precision: auto` is float16, need a scaler; `emaDecay` was 0 or was left out.
        """
        if self.scaler.is_enabled():
            content.setdefault("scaler", self.scaler.state_dict())
        if self.average is not None:
            weights = {f"module.{name}": value for name, value in content["model"].items()}
            content.setdefault("average", {**weights, "n_averaged": torch.zeros_like(self.average.n_averaged)})

    def load_weights(self, payload: bytes | memoryview, source: str) -> None:
        """Load only weights and buffers, from a checkpoint of this trainer, safetensors or the `state_dict` of a model.

        Raises:
            ConfigError: the payload, which was read from `source`, is neither, or is of another model.
        """
        try:
            content = export.read_tensors(payload) if export.is_safetensors(payload) else from_bytes(payload)
            weights = content.get("model", content)
            # DistributedDataParallel's own state_dict, which scripts often save, has this before each name.
            weights = {name.removeprefix("module."): value for name, value in weights.items()}
        except Exception as error:  # torch.load raises many types for a user's file
            raise ConfigError(
                f"initialCheckpoint {source}: holds no weights ({error}); expected a checkpoint of recipe"
                f" {self.config.recipe}, or its model's state_dict as safetensors or torch.save writes it"
            ) from error
        try:
            self.model.load_state_dict(weights)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            # The first line of torch's message names the class of the model.
            listed = " ".join((str(error).partition("\n")[2] or str(error)).split())
            raise ConfigError(
                f"initialCheckpoint {source}: does not fit the model of recipe {self.config.recipe}: {listed}"
            ) from error
        if self.average is not None:
            self.average.module.load_state_dict(self.model.state_dict())


def _identity(config: Mapping[str, Any], data: Mapping[str, str]) -> dict[str, Any]:
    """What must not change, by the names that users know. Settings that only one of two runs has are not compared."""
    settings = dict(_flat("settings", config.get("settings", {})))
    fixed = {to_camel(key): config.get(key, "unknown") for key in FIXED}
    return {**fixed, **settings, TRAINING_DATA: data.get(TRAINING_DATA, "unknown")}


def _flat(name: str, value: object) -> Iterator[tuple[str, object]]:
    """The values in nested dictionaries, by their names with dots."""
    if not isinstance(value, dict):
        yield name, value
        return
    for key, item in value.items():
        yield from _flat(f"{name}.{key}", item)
