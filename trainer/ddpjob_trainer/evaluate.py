# ruff: noqa: N806 - tensors carry their shape in their name
"""Exact accuracy over all held-out samples: each is counted once, whatever the world size."""

from collections.abc import Callable
from itertools import islice

import torch
from torch import nn

from ddpjob_ranks.distributed import Gang
from ddpjob_trainer.data import Images
from ddpjob_trainer.sampling import share

Predict = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def shapes(split: Images, gang: Gang, *, batch_size: int) -> list[torch.Tensor]:
    """Images of a batch of each shape that this rank's part of an evaluation has: the first and the last one."""
    part = share(len(split), rank=gang.rank, world_size=gang.world_size)
    starts = range(part.start, part.stop, batch_size)
    batches = [slice(start, min(start + batch_size, part.stop)) for start in sorted({*starts[:1], *starts[-1:]})]
    return [images_BCHW for batch in batches for images_BCHW, _ in split.batches(batch, batch_size)]


@torch.no_grad()
def count_correct(
    model: nn.Module, split: Images, predict: Predict, gang: Gang, *, batch_size: int, stop_reached: Callable[[], bool]
) -> tuple[int, int] | None:
    """How many samples of the split the model labels right, and how many there are, over all ranks; the same on each.

    Samples that cannot be read do not count. `predict` gives the logits of a batch of images by the model.

    The model must be equal on all ranks, buffers included. It is left in training mode. All ranks call `stop_reached`
    equally often, and return None once it is true: an evaluation may take longer than the grace period of a SIGTERM.
    """
    model.eval()
    correct_and_counted = torch.zeros(2, dtype=torch.int64, device=gang.device)
    part = share(len(split), rank=gang.rank, world_size=gang.world_size)
    longest = share(len(split), rank=0, world_size=gang.world_size)
    batches = split.batches(part, batch_size)
    for _ in range(0, longest.stop, batch_size):
        if stop_reached():
            model.train()
            return None
        for images_BCHW, labels_B in islice(batches, 1):  # this rank may have one batch less than the longest
            logits_BK = predict(model, images_BCHW)
            correct_and_counted[0] += (logits_BK.argmax(dim=1) == labels_B).sum()
            correct_and_counted[1] += len(labels_B)
    model.train()
    correct, counted = gang.sum_(correct_and_counted).tolist()
    assert counted <= len(split), f"counted {counted} of {len(split)} samples"
    return int(correct), int(counted)
