"""Metrics of held-out samples, which are reduced over ranks: exact, whatever the number of ranks."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

#: Replaces a tensor by its sum over all ranks. All ranks call it equally often.
SumOverRanks = Callable[[torch.Tensor], torch.Tensor]


class Metric(Protocol):
    """One metric of one evaluation. A recipe makes a new one for each evaluation.

    An object of torchmetrics needs an adapter, which is in docs/how-to/own-model.md: its `update` takes predictions and targets,
    not the whole batch, and its `compute` takes no argument, since it communicates itself.
    """

    def update(self, outputs: Any, batch: Any, /) -> None:
        """Count a batch that the model gave these outputs for. A rank may have fewer batches than others, or none."""

    def compute(self, sum_over_ranks: SumOverRanks, /) -> float:
        """The value over the samples of all ranks, the same on each."""


class Mean:
    """The mean of one value for each sample, as `values(outputs, batch)` gives them; `percent` multiplies it by 100."""

    def __init__(self, values: Callable[[Any, Any], torch.Tensor], *, percent: bool = False) -> None:
        self._values = values
        self._sum_and_count = torch.zeros(2, dtype=torch.float64)
        self.unit = "%" if percent else ""
        """Shown after the value."""

    def update(self, outputs: Any, batch: Any) -> None:
        """Count a batch."""
        values = self._values(outputs, batch)
        if values.ndim == 0:
            raise ValueError("a metric's values are one number; expected one for each sample")
        values = values.double().flatten()
        total = values.sum()
        # The number is written on the device: a copy from the host would wait for it.
        added = torch.stack((total, torch.full_like(total, len(values))))
        self._sum_and_count = self._sum_and_count.to(added.device) + added

    def compute(self, sum_over_ranks: SumOverRanks) -> float:
        """The mean over the samples of all ranks; not a number if there is none."""
        total, count = sum_over_ranks(self._sum_and_count).tolist()
        return (100 * total if self.unit else total) / count if count else float("nan")


def correct(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
    """Whether the largest of the outputs is at the label, which is the second part of the batch, for each sample."""
    right: torch.Tensor = outputs.argmax(dim=1) == batch[1]
    return right


def accuracy() -> Mean:
    """The share of samples whose largest output is at the label, in percent."""
    return Mean(correct, percent=True)


def shown(name: str, metric: Metric, value: float) -> str:
    """The value as text, such as "accuracy 99.72 %"."""
    return f"{name} {value:.2f} %" if getattr(metric, "unit", "") == "%" else f"{name} {value:.6g}"
