# ruff: noqa: N803, N806 - tensors carry their shape in their name
"""Recipe `speedrun-cifar10`: CIFAR-10 to 94 % in as little time as possible, on the loop that all recipes share.

Network, optimizer and augmentation follow the description in "94 % on CIFAR-10 in 3.29 Seconds on a Single GPU" (Jordan
2024, arXiv 2404.00498); batch size, epochs, rates and Muon are the settings published with its successor airbench94_muon
(github.com/KellerJordan/cifar10-airbench). The last accuracy is with test-time augmentation, as there, and the log line says so.
"""

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from ddpjob_recipes.decoded import load
from ddpjob_recipes.muon import Muon
from ddpjob_recipes.resnet_cifar10 import CIFAR10
from ddpjob_trainer import optim
from ddpjob_trainer.config import Defaults, ResolvedConfig
from ddpjob_trainer.data import ImageData, Labelled, Preparation, Split
from ddpjob_trainer.losses import cross_entropy
from ddpjob_trainer.recipes import Recipe

PREPARATION = Preparation(mean=CIFAR10.mean, std=CIFAR10.std, max_shift=2, flip="alternating", reflect=True)

WIDTHS = (64, 256, 256)
WHITENING_SIZE = 2
#: Each direction of a patch and its opposite.
WHITENING_WIDTH = 2 * 3 * WHITENING_SIZE**2
WHITENING_SAMPLES = 5000
#: Keeps directions without variance from being blown up.
WHITENING_EPSILON = 5e-4

#: The published rates are for a loss summed over 2,000 samples; ours is their mean.
PUBLISHED_BATCH_SIZE, PUBLISHED_RATE = 2000, 0.24
BIAS_SCALE = 0.053 * PUBLISHED_BATCH_SIZE / PUBLISHED_RATE
HEAD_SCALE = 0.67 * PUBLISHED_BATCH_SIZE / PUBLISHED_RATE
#: Of biases and head; `momentum` in the configuration is that of the filters.
SGD_MOMENTUM = 0.85
#: The share of the steps in which the bias of the whitening layer trains: three of eight epochs, as published. Without its
#: gradient none is computed of the first block's input, the largest of the network.
WHITENING_SHARE = 3 / 8


class Norm(nn.BatchNorm2d):
    """BatchNorm with a trained bias only, whose statistics follow the last few batches: training is short."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-12, momentum=0.4)
        self.weight.requires_grad = False


class Block(nn.Sequential):
    """Two convolutions; halves height and width. No residual path."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__(
            _convolution(channels_in, channels),
            nn.MaxPool2d(2),
            Norm(channels),
            nn.GELU(),
            _convolution(channels, channels),
            Norm(channels),
            nn.GELU(),
        )


def _convolution(channels_in: int, channels: int) -> nn.Conv2d:
    """3x3; its first filters pass their input channel on, the others start at random."""
    convolution = nn.Conv2d(channels_in, channels, kernel_size=3, padding=1, bias=False)
    nn.init.dirac_(convolution.weight.data[:channels_in])
    return convolution


class Network(nn.Module):
    """For 3x32x32 images: a fixed layer that whitens 2x2 patches, three blocks, one linear layer; 2.0 M parameters."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.whitening = nn.Conv2d(3, WHITENING_WIDTH, WHITENING_SIZE)
        self.whitening.weight.requires_grad = False
        self.whitening_trains = True
        widths = (WHITENING_WIDTH, *WIDTHS)
        blocks = [Block(before, after) for before, after in zip(widths, WIDTHS, strict=False)]
        self.body = nn.Sequential(nn.GELU(), *blocks, nn.MaxPool2d(3), nn.Flatten())
        self.head = nn.Linear(WIDTHS[-1], num_classes, bias=False)
        with torch.no_grad():
            self.head.weight.div_(self.head.weight.std())

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits, scaled down as the head's weights are large."""
        fixed = self.training and not self.whitening_trains
        whitened_BCHW = self.whitening(images_BCHW)
        logits_BK: torch.Tensor = self.head(self.body(whitened_BCHW.detach() if fixed else whitened_BCHW))
        if fixed:  # DistributedDataParallel waits for a gradient of each parameter: zeros
            assert self.whitening.bias is not None
            logits_BK = logits_BK + 0 * self.whitening.bias.sum()
        return logits_BK / self.head.in_features


def model(data: ImageData) -> Network:
    """The network, with the first layer set from the training images."""
    network = Network(data.num_classes)
    whiten(network, data)
    return network


@torch.no_grad()
def whiten(network: Network, data: ImageData) -> None:
    """Set the first layer so that its outputs over the training images are uncorrelated, of variance 1.

    Its filters are the eigenvectors of the patches' covariance, each divided by the root of its eigenvalue.
    """
    assert isinstance(data.train, Split)
    every = max(1, len(data.train) // WHITENING_SAMPLES)  # a folder's samples are sorted by class
    images_BCHW = PREPARATION.normalise(data.train.images_NCHW[::every])
    patches_BDL = functional.unfold(images_BCHW, WHITENING_SIZE)  # D values of each of L patches
    patches_DM = patches_BDL.transpose(0, 1).flatten(1)
    covariance_DD = (patches_DM @ patches_DM.mT / patches_DM.shape[1]).cpu()
    eigenvalues_D, eigenvectors_DD = torch.linalg.eigh(covariance_DD)
    filters_DD = eigenvectors_DD.mT / (eigenvalues_D + WHITENING_EPSILON).sqrt()[:, None]
    weight = network.whitening.weight
    weight.copy_(torch.cat((filters_DD, -filters_DD)).view_as(weight))


def make_optimizer(network: nn.Module, config: ResolvedConfig) -> Muon:
    """Muon for filters; SGD for biases and head, whose weight decay is a share of the weights for each step at the peak."""
    trained = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    filters = [parameter for _, parameter in trained if parameter.ndim == 4]
    groups = [{"params": filters, "momentum": config.momentum, "orthogonal": True, "lr_scale": 1.0}]
    for scale, share, prefix, suffix in (
        (BIAS_SCALE, WHITENING_SHARE, "whitening", "bias"),
        (BIAS_SCALE, 1.0, "body", "bias"),
        (HEAD_SCALE, 1.0, "head", "weight"),
    ):
        chosen = [parameter for name, parameter in trained if name.startswith(prefix) and name.endswith(suffix)]
        peak = max(config.learning_rate, 1e-9) * scale
        decay = config.weight_decay / peak
        groups.append(
            {"params": chosen, "momentum": SGD_MOMENTUM, "lr_scale": scale, "lr_share": share, "weight_decay": decay}
        )
    return Muon(groups)


def fix_whitening(network: nn.Module, done: float) -> None:
    """Before a step: whether the bias of the whitening layer trains in it."""
    assert isinstance(network, Network)
    network.whitening_trains = done < WHITENING_SHARE


def six_views(network: nn.Module, batch: Labelled) -> torch.Tensor:
    """Test-time augmentation: weighted mean of the logits of six views.

    The image and its mirror image, each as it is (half the weight) and moved by one pixel to either corner.
    """
    images_BCHW, _ = batch
    height, width = images_BCHW.shape[2:]
    padded = functional.pad(images_BCHW, (1, 1, 1, 1), mode="reflect")
    corners = (padded[:, :, :height, :width].contiguous(), padded[:, :, 2:, 2:].contiguous())  # or compiled once more
    views = [(0.5, images_BCHW), *((0.25, corner) for corner in corners)]
    logits = [weight / 2 * (network(view) + network(view.flip(3))) for weight, view in views]
    return torch.stack(logits).sum(dim=0)


speedrun_cifar10 = Recipe(
    # `momentum` is Muon's; `weight_decay` holds for biases and head.
    defaults=Defaults(
        epochs=8,
        global_batch_size=PUBLISHED_BATCH_SIZE,
        learning_rate=PUBLISHED_RATE,
        warmup_epochs=0,
        weight_decay=4e-3,
        momentum=0.6,
    ),
    data=partial(load, preparation=PREPARATION),
    model=model,
    optimizer=make_optimizer,
    schedule=optim.linear,
    before_step=fix_whitening,
    loss=partial(cross_entropy, label_smoothing=0.2),
    test_time_forward=six_views,
    test_time_note=", each seen in six views",
)
