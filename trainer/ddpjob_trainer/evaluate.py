# ruff: noqa: N806 - tensors carry their shape in their name
"""Exact accuracy over all held-out samples: each is counted once, whatever the world size."""

import torch
from torch import nn

from ddpjob_trainer.data import Preparation, Split
from ddpjob_trainer.distributed import Gang
from ddpjob_trainer.sampling import share

BATCH_SIZE = 512


@torch.no_grad()
def count_correct(model: nn.Module, split: Split, preparation: Preparation, gang: Gang) -> int:
    """How many samples of the split the model labels right, over all ranks; every rank gets the same number.

    The model must be equal on all ranks, buffers included. It is left in training mode.
    """
    model.eval()
    part = share(len(split), rank=gang.rank, world_size=gang.world_size)
    correct_and_counted = torch.zeros(2, dtype=torch.int64, device=gang.device)
    for start in range(part.start, part.stop, BATCH_SIZE):
        batch = slice(start, min(start + BATCH_SIZE, part.stop))
        logits_BK = model(preparation.normalise(split.images_NCHW[batch]))
        labels_B = split.labels_N[batch]
        correct_and_counted[0] += (logits_BK.argmax(dim=1) == labels_B).sum()
        correct_and_counted[1] += len(labels_B)
    model.train()
    correct, counted = gang.sum_(correct_and_counted).tolist()
    assert counted == len(split), f"counted {counted} of {len(split)} samples"
    return int(correct)
