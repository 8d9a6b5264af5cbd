"""All that a training is, besides its configuration and data: model, optimizer, step, generator.

Order and augmentation have no state (they are functions of the step), and neither has the learning rate.
"""

import io
from typing import Any

import torch
from torch import nn

from ddpjob_trainer.config import ConfigError, TrainerConfig

#: What must not change between a checkpoint and the run that goes on from it: with another value the step number would
#: mean another point of another training. World size, epochs and learning rate may change.
FIXED = ("recipe", "global_batch_size", "seed", "momentum", "weight_decay")


class TrainingState:
    """Model and optimizer after `step` steps."""

    def __init__(self, *, model: nn.Module, optimizer: torch.optim.Optimizer, config: TrainerConfig, num_samples: int):
        self.model = model
        self.optimizer = optimizer
        self.config = config
        self.num_samples = num_samples
        self.step = 0

    def to_bytes(self) -> bytes:
        """The whole state, as `torch.save` writes it; `torch.load(..., weights_only=True)` reads it."""
        buffer = io.BytesIO()
        content = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": torch.get_rng_state(),  # rank 0's: for models that draw, as dropout does
            "config": self.config.model_dump(),
            "num_samples": self.num_samples,
        }
        torch.save(content, buffer)
        return buffer.getvalue()

    def load_bytes(self, payload: bytes) -> None:
        """Take over a saved state, by way of the CPU.

        Raises:
            ConfigError: it is the state of another training.
        """
        content: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
        found = {**content["config"], "num_samples": content["num_samples"]}
        expected = {**self.config.model_dump(), "num_samples": self.num_samples}
        for key in (*FIXED, "num_samples"):
            if found[key] != expected[key]:
                raise ConfigError(
                    f"checkpoint at step {content['step']}: {key} was {found[key]!r} when it was saved and is"
                    f" {expected[key]!r} now; set it back, or rename the job or remove its checkpoint folder to start afresh"
                )
        try:
            self.model.load_state_dict(content["model"])
            self.optimizer.load_state_dict(content["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise ConfigError(
                f"checkpoint at step {content['step']} does not fit recipe {self.config.recipe}: {error};"
                " rename the job or remove its checkpoint folder to start afresh"
            ) from error
        torch.set_rng_state(content["generator"])
        self.step = content["step"]
