# ruff: noqa: N806 - tensors carry their shape in their name
"""Exact accuracy over all held-out samples: each is counted once, whatever the world size."""

from collections.abc import Callable
from itertools import islice

import torch
from torch import nn

from ddpjob_ranks.distributed import Gang
from ddpjob_trainer.data import Images
from ddpjob_trainer.sampling import share

BATCH_SIZE = 512
Predict = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def shapes(split: Images, gang: Gang) -> list[torch.Tensor]:
    """Images of a batch of each shape that this rank's part of an evaluation has: the first and the last one."""
    part = share(len(split), rank=gang.rank, world_size=gang.world_size)
    starts = range(part.start, part.stop, BATCH_SIZE)
    batches = [slice(start, min(start + BATCH_SIZE, part.stop)) for start in sorted({*starts[:1], *starts[-1:]})]
    return [images_BCHW for batch in batches for images_BCHW, _ in split.batches(batch, BATCH_SIZE)]


@torch.no_grad()
def count_correct(
    model: nn.Module, split: Images, predict: Predict, gang: Gang, stop_reached: Callable[[], bool]
) -> int | None:
    """How many samples of the split the model labels right, over all ranks; every rank gets the same number.

    `predict` gives the logits of a batch of images by the model.

    The model must be equal on all ranks, buffers included. It is left in training mode. All ranks ask `stop_reached`
    equally often, and give up with None where it says yes: an evaluation may take longer than the grace of a SIGTERM.
    """
    model.eval()
    correct_and_counted = torch.zeros(2, dtype=torch.int64, device=gang.device)
    part = share(len(split), rank=gang.rank, world_size=gang.world_size)
    longest = share(len(split), rank=0, world_size=gang.world_size)
    batches = split.batches(part, BATCH_SIZE)
    for _ in range(0, longest.stop, BATCH_SIZE):
        if stop_reached():
            model.train()
            return None
        for images_BCHW, labels_B in islice(batches, 1):  # this rank may have one batch less than the longest
            logits_BK = predict(model, images_BCHW)
            correct_and_counted[0] += (logits_BK.argmax(dim=1) == labels_B).sum()
            correct_and_counted[1] += len(labels_B)
    model.train()
    correct, counted = gang.sum_(correct_and_counted).tolist()
    assert counted == len(split), f"counted {counted} of {len(split)} samples"
    return int(correct)
