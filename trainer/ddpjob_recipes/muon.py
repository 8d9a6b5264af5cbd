# ruff: noqa: N803, N806 - tensors carry their shape in their name
"""Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): momentum SGD whose update of a filter is orthogonal."""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

import torch

#: Of the quintic x -> a x + b x^3 + c x^5 that drives singular values towards 1 (the post named above). Three rounds
#: leave them between about 0.5 and 1.5, which trains as well as 1 does.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ROUNDS = 3


class Muon(torch.optim.Optimizer):
    """Groups with `orthogonal` hold filters for Muon; the others are trained by plain Nesterov SGD.

    The whole state is one `momentum_buffer` for each parameter, kept in `state_dict` as any optimizer's.
    """

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.0, "momentum": 0.0, "weight_decay": 0.0, "orthogonal": False})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of all parameters that have a gradient."""
        assert closure is None, "the loop computes gradients itself"
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            updates = self._nesterov(parameters, group)
            if group["orthogonal"]:
                # To a norm of sqrt(filters): the direction alone is learned.
                torch._foreach_div_(parameters, torch._foreach_norm(parameters))
                torch._foreach_mul_(parameters, [len(parameter) ** 0.5 for parameter in parameters])
                updates = orthogonalised(updates)
            torch._foreach_add_(parameters, updates, alpha=-group["lr"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load only the momenta: the groups with their rates and weight decays stay as this optimizer was created with them."""
        super().load_state_dict({**state_dict, "param_groups": self.state_dict()["param_groups"]})

    def _nesterov(self, parameters: list[torch.Tensor], group: dict[str, Any]) -> list[torch.Tensor]:
        """The gradients with momentum; adds them to the momentum buffers."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if group["weight_decay"]:
            gradients = list(torch._foreach_add(gradients, parameters, alpha=group["weight_decay"]))
        buffers = [self._buffer(parameter) for parameter in parameters]
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, gradients)
        return list(torch._foreach_add(gradients, buffers, alpha=group["momentum"]))

    def _buffer(self, parameter: torch.Tensor) -> torch.Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer: torch.Tensor = state["momentum_buffer"]
        return buffer


def orthogonalised(updates: list[torch.Tensor]) -> list[torch.Tensor]:
    """Each update, seen as a matrix of one row for each filter, with all its singular values near 1.

    Neighbours of one shape go through the rounds together, as a batch of matrices.
    """
    done: list[torch.Tensor] = []
    for shape, alike in groupby(updates, key=lambda update: update.shape):
        matrices_FRC = torch.stack([update.flatten(1) for update in alike])
        done += [matrix.view(shape) for matrix in _newton_schulz(matrices_FRC)]
    return done


def _newton_schulz(matrices_FRC: torch.Tensor) -> torch.Tensor:
    """The rounds themselves, on the side with fewer rows."""
    tall = matrices_FRC.shape[1] > matrices_FRC.shape[2]
    x = matrices_FRC.mT if tall else matrices_FRC
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)  # no singular value is larger than the norm
    a, b, c = COEFFICIENTS
    for _ in range(ROUNDS):
        squared = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(squared, squared, squared, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices_FRC.dtype)  # autocast multiplies in bfloat16, which halves the time
