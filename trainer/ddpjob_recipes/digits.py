# ruff: noqa: N806 - tensors carry their shape in their name
"""Recipe `digits`: 8x8 images of handwritten digits and a small CNN. Trains to 98 % in seconds on a CPU.

The data ship with scikit-learn (the test set of the UCI optical recognition of handwritten digits): 1,797 images with
pixels of 0 to 16. Every fifth one is held out. The model has no BatchNorm, so that a step does not depend on how the
batch is split over ranks.
"""

import importlib.util
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ddpjob_ranks.errors import ConfigError
from ddpjob_trainer.config import Defaults, ResolvedConfig
from ddpjob_trainer.data import ImageData, Preparation, Split
from ddpjob_trainer.recipes import Recipe

HELD_OUT_EVERY = 5
PREPARATION = Preparation(mean=(4.89,), std=(6.02,), max_shift=1, flip="never")


def load(_: Path, __: ResolvedConfig) -> ImageData:
    """The digits; no folder is needed. Raises ConfigError where scikit-learn is not installed."""
    # scikit-learn's load_digits() reads this file, but importing it takes longer than the training (1.1 s of CPU time).
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise ConfigError(
            "recipe digits: scikit-learn, which brings the data, is not installed; install ddpjob[trainer]"
        )
    path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    table = torch.from_numpy(np.loadtxt(path, delimiter=",", dtype=np.uint8))
    images_NCHW, labels_N = table[:, :64].reshape(-1, 1, 8, 8), table[:, 64].long()
    held_out_N = torch.arange(len(table)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    return ImageData(
        train=Split(images_NCHW=images_NCHW[~held_out_N], labels_N=labels_N[~held_out_N], preparation=PREPARATION),
        test=Split(images_NCHW=images_NCHW[held_out_N], labels_N=labels_N[held_out_N], preparation=PREPARATION),
        num_classes=10,
    )


def model(data: ImageData) -> nn.Module:
    """Two convolutions, one hidden layer; about 150,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, data.num_classes),
    )


digits = Recipe(
    # Measured over 12 seeds, see README.
    defaults=Defaults(
        epochs=15, global_batch_size=64, learning_rate=0.05, warmup_epochs=1, weight_decay=5e-4, momentum=0.9
    ),
    data=load,
    model=model,
    # 3 epochs on 2 busy cores: 4.6 s with 1 thread, 31.7 s with 2, which spend it waiting for each other.
    max_threads=1,
    heavy=False,
)
