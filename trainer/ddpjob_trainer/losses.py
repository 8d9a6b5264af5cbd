# ruff: noqa: N803, N806 - tensors carry their shape in their name
"""Losses: functions of (outputs, batch) that give one value for each sample, or the mean over the samples."""

from typing import Any

import torch

from ddpjob_trainer.data import Batch


def cross_entropy(logits_BK: torch.Tensor, batch: Any, *, label_smoothing: float = 0.0) -> torch.Tensor:
    """Of logits over K classes and the labels, which are the second part of the batch.

    Smoothing spreads that share of each target over all classes (Szegedy et al. 2015).
    """
    return torch.nn.functional.cross_entropy(logits_BK, batch[1], reduction="none", label_smoothing=label_smoothing)


def weighted(loss: torch.Tensor, batch: Batch) -> torch.Tensor:
    """This part's share of the step's loss: summed over parts and averaged over ranks, the mean over all samples.

    `loss` has one value for each sample, several (such as one for each pixel), whose mean counts, or is the mean itself.

    Raises:
        ValueError: it is of another shape.
    """
    if loss.ndim == 0:
        return loss * (batch.weight * batch.num_samples)
    if len(loss) != batch.num_samples:
        raise ValueError(
            f"the recipe's loss has shape {tuple(loss.shape)} for {batch.num_samples} samples; expected one value for each"
            " sample, or a single value, their mean"
        )
    losses_B = loss.flatten(1).mean(1) if loss.ndim > 1 else loss
    return (losses_B * batch.weight).sum()
