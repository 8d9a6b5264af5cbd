"""Recipes `resnet18-cifar10` and `resnet50-cifar10`: CIFAR-10 from an image folder, ResNets with the stem for 32x32.

Every rank decodes all images once and keeps them on its device as uint8 (train: 154 MB).
"""

from collections.abc import Callable
from functools import partial

from torch import nn
from torchvision.models import resnet18, resnet50

from ddpjob_recipes.decoded import load
from ddpjob_trainer.config import Defaults
from ddpjob_trainer.data import ImageData, Preparation
from ddpjob_trainer.recipes import Recipe

#: Mean and standard deviation of CIFAR-10's training images, times 255 (0.4914, 0.4822, 0.4465; 0.2470, 0.2435, 0.2616).
CIFAR10 = Preparation(mean=(125.3, 123.0, 113.9), std=(63.0, 62.1, 66.7), max_shift=4, flip="random")


def model(resnet: Callable[..., nn.Module], data: ImageData) -> nn.Module:
    """A ResNet (He et al. 2015) for 32x32: its 7x7 stride-2 stem and max-pooling would leave 8x8 at the first block."""
    network = resnet(num_classes=data.num_classes)
    stem = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    network.conv1, network.maxpool = stem, nn.Identity()
    return network


#: The usual learning rate of 0.1 for 128 samples.
DEFAULTS = Defaults(
    epochs=30, global_batch_size=512, learning_rate=0.4, warmup_epochs=3, weight_decay=5e-4, momentum=0.9
)
resnet18_cifar10 = Recipe(defaults=DEFAULTS, data=partial(load, preparation=CIFAR10), model=partial(model, resnet18))
resnet50_cifar10 = Recipe(defaults=DEFAULTS, data=partial(load, preparation=CIFAR10), model=partial(model, resnet50))
