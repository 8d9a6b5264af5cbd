"""How many steps optimizers have made: what tells a step of a loop that changed the weights from one that only added gradients."""

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ddpjob_session.state import State

#: A training may have steps without an optimizer's for another reason. After so many of them it is saved all the same.
MAX_ADDED_STEPS: Final = 256


class OptimizerSteps:
    """Counts the steps of all optimizers of this process, since one without state, such as plain SGD, may be no tracked part."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._num_added = 0  # steps of the loop since the last one in which an optimizer made a step
        self._in_this_step = 0
        self._has_any = False
        self._hook = register_optimizer_step_post_hook(self._count)

    @property
    def has_changed(self) -> bool:
        """Whether this step has changed the weights, as far as that is known: of a training without an optimizer nothing is."""
        return self._in_this_step > 0 or not self._has_any

    def end_step(self) -> None:
        """A step of the loop has ended."""
        self._num_added = 0 if self._in_this_step else self._num_added + 1
        self._in_this_step = 0

    @property
    def are_gradients_kept(self) -> bool:
        """Whether gradients that were computed wait for an optimizer's step. They are no part of the state."""
        is_expected = self._has_any or any(
            isinstance(part, torch.optim.Optimizer) for part in self._state.parts.values()
        )
        is_between = 0 < self._num_added <= MAX_ADDED_STEPS
        return is_expected and is_between and any(each.grad is not None for each in self._parameters())

    def close(self) -> None:
        """Count no more."""
        self._hook.remove()

    def _count(self, *_: Any) -> None:
        self._in_this_step += 1
        self._has_any = True

    def _parameters(self) -> Iterable[nn.Parameter]:
        for part in self._state.parts.values():
            if isinstance(part, nn.Module):
                yield from part.parameters()
