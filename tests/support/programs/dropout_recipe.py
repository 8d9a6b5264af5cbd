"""A recipe for tests: the digits, by a network with dropout. As `recipe=dropout_recipe:dropout`."""

from dataclasses import replace

import torch
from torch import nn

from ddpjob.recipe import ImageData
from ddpjob_recipes.digits import digits


class SharedMask(nn.Module):
    """Dropout with one mask for all samples of a batch, which shows what a rank draws and not which samples it has."""

    def forward(self, features_BF: torch.Tensor) -> torch.Tensor:  # noqa: N803 - tensors carry their shape in their name
        """Some features of all samples set to zero."""
        mask = nn.functional.dropout(torch.ones(features_BF.shape[1]), training=self.training)
        if self.training:
            print("mask", (mask > 0).int().tolist(), flush=True)
        return features_BF * mask


def model(data: ImageData) -> nn.Module:
    """One hidden layer, and no BatchNorm."""
    return nn.Sequential(
        nn.Flatten(), SharedMask(), nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.5), nn.Linear(48, data.num_classes)
    )


dropout = replace(digits, model=model)
