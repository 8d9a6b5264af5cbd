"""The state of a training: model, optimizer and step, with what identifies the training that they belong to.

The order of samples, augmentation, dropout and the learning rate have no state: they are functions of the step.
"""

import io
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from pydantic.alias_generators import to_camel
from torch import nn

from ddpjob_ranks.errors import ConfigError
from ddpjob_trainer.config import ResolvedConfig

#: What must not change between a checkpoint and the run that resumes from it: with another value the step number would
#: belong to another training. World size, epochs, learning rate and profile may change.
FIXED = ("recipe", "global_batch_size", "seed", "momentum", "weight_decay")

#: Names of the fingerprints of the two splits. A resume needs the same training data; other held-out data are reported.
TRAINING_DATA, HELD_OUT_DATA = "data", "held-out data"


class TrainingState:
    """Model and optimizer after `step` steps. `data` has the fingerprints of the splits, by name."""

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: ResolvedConfig,
        data: Mapping[str, str],
        world_size: int = 1,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.config = config
        self.data = data
        self.world_size = world_size
        self.parts: dict[str, nn.Module | torch.optim.Optimizer] = {"model": model, "optimizer": optimizer}
        self.step = 0

    def content(self) -> dict[str, Any]:
        """The whole state as a checkpoint holds it; the tensors are those of model and optimizer, not copies."""
        return {
            "step": self.step,
            **{name: part.state_dict() for name, part in self.parts.items()},
            "config": self.config.model_dump(),
            "data": dict(self.data),
            "world_size": self.world_size,
        }

    def check_loadable(self) -> None:
        """Check that `from_bytes` will read what `torch.save` makes of this state, without copying any tensor.

        Raises:
            ConfigError: it will not; the text names the first value that is of a type that torch does not load.
        """
        if found := _unloadable(_skeleton(self.content()), "state"):
            name, kind = found
            raise ConfigError(
                f"recipe {self.config.recipe}: {name} is of type {kind.__module__}.{kind.__qualname__}, which could be saved"
                " in a checkpoint but not loaded (torch.load with weights_only=True); use tensors, numbers, strings, lists,"
                " tuples and dictionaries"
            )

    def load_bytes(self, payload: bytes) -> str:
        """Load a saved state; see `load`."""
        return self.load(from_bytes(payload))

    def load(self, content: dict[str, Any]) -> str:
        """Load what `content` returned. Returns a description for the log: who saved it, and whether evaluations changed.

        Raises:
            ConfigError: it is the state of another training.
        """
        saved_data = content.get("data", self.data)  # a checkpoint of release 0.1 has no fingerprints of its data
        found = {**content["config"], **saved_data}
        expected = {**self.config.model_dump(), **self.data}
        for key in (*FIXED, TRAINING_DATA):
            saved, now = found.get(key, "unknown"), expected.get(key, "unknown")
            if saved != now:
                named = to_camel(key) if key in FIXED else key
                back = "set it back" if key in FIXED else "give the training that data again (DDPJOB_DATA_DIR)"
                raise ConfigError(
                    f"checkpoint at step {content['step']}: {named} was {saved!r} when it was saved and is"
                    f" {now!r} now; {back}, or rename the job or remove its checkpoint folder to start from step 0"
                )
        try:
            for name, part in self.parts.items():
                part.load_state_dict(content[name])
        except (KeyError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"checkpoint at step {content['step']} does not fit recipe {self.config.recipe}: {error};"
                " rename the job or remove its checkpoint folder to start from step 0"
            ) from error
        _lay_out_like_parameters(self.optimizer)
        self.step = content["step"]
        saved_by = f"saved by {content['world_size']} ranks under profile {found['profile']}"
        if (before := saved_data.get(HELD_OUT_DATA)) != (held_out := self.data.get(HELD_OUT_DATA)):
            saved_by += (
                f"; the held-out data have changed from {before} to {held_out}, so accuracies are not comparable"
            )
        return saved_by

    def load_weights(self, payload: bytes, source: str) -> None:
        """Load only weights and buffers, from a checkpoint of this trainer or the `state_dict` of a model.

        Raises:
            ConfigError: the payload, which was read from `source`, is neither, or is of another model.
        """
        try:
            content = from_bytes(payload)
            weights = content.get("model", content)
            # DistributedDataParallel's own state_dict, which scripts often save, has this before each name.
            self.model.load_state_dict({name.removeprefix("module."): value for name, value in weights.items()})
        except Exception as error:  # torch.load raises many types for a user's file
            raise ConfigError(
                f"initialCheckpoint {source}: holds no weights for recipe {self.config.recipe} ({error}); expected a"
                " checkpoint of this recipe, or its model's state_dict as torch.save writes it"
            ) from error


def from_bytes(payload: bytes) -> dict[str, Any]:
    """The content of a file of torch.save, its tensors on the CPU. No code in the file is run."""
    content: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    return content


def _skeleton(value: Any) -> Any:
    """The nested value with an empty tensor in the place of each tensor."""
    if isinstance(value, torch.Tensor):
        return value.new_empty(0)
    if type(value) in (dict, OrderedDict):
        return {key: _skeleton(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_skeleton(item) for item in value)
    return value


def _unloadable(value: Any, name: str) -> tuple[str, type] | None:
    """Name and type of the first value that torch does not load after saving it; None if there is none."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        from_bytes(file.getvalue())
    except Exception:  # noqa: BLE001 - pickle and torch raise many types for values that they do not know
        items = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
        )
        for key, item in items:
            if found := _unloadable(item, f"{name}[{key!r}]"):
                return found
        return name, type(value)
    return None


def _lay_out_like_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Give loaded optimizer state memory of its own, in the memory format of its parameter.

    A momentum saved under another profile may have another format. `load_state_dict` keeps it, and fused updates then
    refuse it on GPUs and pair wrong elements on CPUs.
    """
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                alike = value.shape == parameter.shape
                state[key] = torch.empty_like(parameter if alike else value, dtype=value.dtype).copy_(value)
