"""The state of a built-in training: model, optimizer and step, with what identifies the training that they belong to.

The order of samples, augmentation, dropout and the learning rate have no state: they are functions of the step.
"""

from collections.abc import Mapping
from typing import Any

import torch
from pydantic.alias_generators import to_camel
from torch import nn

from ddpjob_ranks.errors import ConfigError
from ddpjob_session.state import State, from_bytes
from ddpjob_trainer.config import ResolvedConfig

#: What must not change between a checkpoint and the run that resumes from it: with another value the step number would
#: belong to another training. World size, epochs, learning rate and profile may change.
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
    ) -> None:
        super().__init__(
            {"model": model, "optimizer": optimizer}, program=f"recipe {config.recipe}", world_size=world_size
        )
        self.model = model
        self.optimizer = optimizer
        self.config = config
        self.data = data

    def content(self) -> dict[str, Any]:
        """The whole state as a checkpoint holds it; the tensors are those of model and optimizer, not copies."""
        return {**super().content(), "config": self.config.model_dump(), "data": dict(self.data)}

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
        saved_by = f"{super().load(content)} under profile {found['profile']}"
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
