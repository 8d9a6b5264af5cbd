"""Evaluation of all held-out samples: each is counted once, whatever the world size."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn

from ddpjob_ranks.distributed import Gang
from ddpjob_trainer.data import Images
from ddpjob_trainer.metrics import Metric, shown
from ddpjob_trainer.sampling import share


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result: each metric as a number and as text, and the number of samples."""

    values: Mapping[str, float]
    texts: Mapping[str, str]
    num_samples: int


def shapes(split: Images, gang: Gang, *, batch_size: int) -> list[Any]:
    """A batch of each shape that this rank's part of an evaluation has: the first and the last one."""
    part = share(len(split), rank=gang.rank, world_size=gang.world_size)
    starts = range(part.start, part.stop, batch_size)
    batches = [slice(start, min(start + batch_size, part.stop)) for start in sorted({*starts[:1], *starts[-1:]})]
    return [content for batch in batches for content in split.batches(batch, batch_size)]


@torch.no_grad()
def evaluate(
    model: nn.Module,
    split: Images,
    forward: Callable[[nn.Module, Any], Any],
    metrics: Mapping[str, Metric],
    gang: Gang,
    *,
    batch_size: int,
    stop_reached: Callable[[], bool],
) -> Evaluation | None:
    """The metrics over all samples of the split that can be read, the same on each rank.

    The model must be equal on all ranks, buffers included. All ranks call `stop_reached` equally often, and return None once
    it is true: an evaluation may take longer than the grace period of a SIGTERM.
    """
    num_samples = 0
    part = share(len(split), rank=gang.rank, world_size=gang.world_size)
    longest = share(len(split), rank=0, world_size=gang.world_size)
    batches = split.batches(part, batch_size)
    with evaluation_mode(model):
        for _ in range(0, longest.stop, batch_size):
            if stop_reached():
                return None
            for content in islice(batches, 1):  # this rank may have one batch less than the longest
                outputs = forward(model, content)
                for metric in metrics.values():
                    metric.update(outputs, content)
                num_samples += _num_samples(content)

    def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
        return gang.sum_(values.to(gang.device))

    values = {name: metric.compute(sum_over_ranks) for name, metric in metrics.items()}
    counted = int(sum_over_ranks(torch.tensor(num_samples)).item())
    assert counted <= len(split), f"counted {counted} of {len(split)} samples"
    texts = {name: shown(name, metric, values[name]) for name, metric in metrics.items()}
    return Evaluation(values=values, texts=texts, num_samples=counted)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode. Afterwards each module is in the mode it had: a recipe may have frozen some of them."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _num_samples(content: Any) -> int:
    """Of a batch: the length of its first tensor or list."""
    if isinstance(content, torch.Tensor):
        return len(content)
    if isinstance(content, Mapping):
        return _num_samples(next(iter(content.values())))
    if isinstance(content, tuple | list) and content and isinstance(content[0], torch.Tensor | Mapping | tuple | list):
        return _num_samples(content[0])
    return len(content)
