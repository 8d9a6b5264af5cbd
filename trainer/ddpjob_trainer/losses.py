# ruff: noqa: N803 - tensors carry their shape in their name
"""Losses that recipes share: functions of (outputs, batch) that give one loss for each sample of the batch."""

import torch

from ddpjob_trainer.data import Batch


def cross_entropy(logits_BK: torch.Tensor, batch: Batch, *, label_smoothing: float = 0.0) -> torch.Tensor:
    """Of logits over K classes. Smoothing spreads that share of each target over all classes (Szegedy et al. 2015)."""
    return torch.nn.functional.cross_entropy(
        logits_BK, batch.labels_B, reduction="none", label_smoothing=label_smoothing
    )
