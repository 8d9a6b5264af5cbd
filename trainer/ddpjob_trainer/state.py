"""All that a training is, besides its configuration and data: model, optimizer, step, generators.

Order and augmentation have no state (they are functions of the step), and neither has the learning rate.
"""

import io
from typing import Any

import torch
from pydantic.alias_generators import to_camel
from torch import nn

from ddpjob_ranks.errors import ConfigError
from ddpjob_trainer.config import TrainerConfig

#: What must not change between a checkpoint and the run that goes on from it: with another value the step number would
#: mean another point of another training. World size, epochs, learning rate and profile may change.
FIXED = ("recipe", "global_batch_size", "seed", "momentum", "weight_decay")


class TrainingState:
    """Model and optimizer after `step` steps."""

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: TrainerConfig,
        num_samples: int,
        world_size: int = 1,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.config = config
        self.num_samples = num_samples
        self.world_size = world_size
        self.parts: dict[str, nn.Module | torch.optim.Optimizer] = {"model": model, "optimizer": optimizer}
        self.step = 0

    def content(self) -> dict[str, Any]:
        """The whole state as a checkpoint holds it; its tensors are the live ones."""
        return {
            "step": self.step,
            **{name: part.state_dict() for name, part in self.parts.items()},
            "generators": _generators(),  # rank 0's: for models that draw, as dropout does
            "config": self.config.model_dump(),
            "num_samples": self.num_samples,
            "world_size": self.world_size,
        }

    def load_bytes(self, payload: bytes) -> str:
        """Take over a saved state, by way of the CPU. Returns by whom it was saved, for people.

        Raises:
            ConfigError: it is the state of another training.
        """
        content = from_bytes(payload)
        found = {**content["config"], "num_samples": content["num_samples"]}
        expected = {**self.config.model_dump(), "num_samples": self.num_samples}
        for key in (*FIXED, "num_samples"):
            if found[key] != expected[key]:
                named = to_camel(key) if key in FIXED else key
                raise ConfigError(
                    f"checkpoint at step {content['step']}: {named} was {found[key]!r} when it was saved and is"
                    f" {expected[key]!r} now; set it back, or rename the job or remove its checkpoint folder to start afresh"
                )
        try:
            for name, part in self.parts.items():
                part.load_state_dict(content[name])
        except (KeyError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"checkpoint at step {content['step']} does not fit recipe {self.config.recipe}: {error};"
                " rename the job or remove its checkpoint folder to start afresh"
            ) from error
        _lay_out_like_parameters(self.optimizer)
        _set_generators(content["generators"])
        self.step = content["step"]
        return f"saved by {content['world_size']} ranks under profile {found['profile']}"

    def load_weights(self, payload: bytes, source: str) -> None:
        """Take over the weights and buffers alone: of a checkpoint of ours, or of a model's bare `state_dict`.

        Raises:
            ConfigError: `source`, whose content the payload is, is neither, or is of another model.
        """
        try:
            content = from_bytes(payload)
            weights = content.get("model", content)
            # DistributedDataParallel's own state_dict, which scripts often save, has this before each name.
            self.model.load_state_dict({name.removeprefix("module."): value for name, value in weights.items()})
        except Exception as error:  # whatever torch.load meets in a file of the user's
            raise ConfigError(
                f"initialCheckpoint {source}: holds no weights for recipe {self.config.recipe} ({error}); expected a"
                " checkpoint of this recipe, or its model's state_dict as torch.save writes it"
            ) from error


def to_bytes(content: dict[str, Any]) -> bytes:
    """What `torch.save` writes; `from_bytes` reads it."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def from_bytes(payload: bytes) -> dict[str, Any]:
    """The content, its tensors on the CPU. Nothing in the file is run."""
    content: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    return content


def _generators() -> dict[str, torch.Tensor]:
    cpu = {"cpu": torch.get_rng_state()}
    return {**cpu, "cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else cpu


def _lay_out_like_parameters(optimizer: torch.optim.Optimizer) -> None:
    """A momentum that was saved under another profile may lie in memory otherwise than its parameter.

    `load_state_dict` leaves it so, and fused updates then refuse it on GPUs and pair wrong elements on CPUs.
    """
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _set_generators(states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
