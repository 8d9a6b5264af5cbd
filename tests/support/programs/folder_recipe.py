"""A recipe for tests: torchvision's ImageFolder with its transforms. As `recipe=folder_recipe:folder`."""

from pathlib import Path

from torch import nn
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, RandomCrop, RandomHorizontalFlip, ToTensor

from ddpjob.recipe import Config, Data, Defaults, Recipe

SIZE = 8


def data(path: Path, config: Config) -> Data:
    """Images of the directories `train` and `test`, which have a directory for each class."""
    del config
    augment = Compose([RandomCrop(SIZE, padding=2), RandomHorizontalFlip(), ToTensor()])
    return Data(train=ImageFolder(path / "train", augment), test=ImageFolder(path / "test", ToTensor()))


def model(found: Data) -> nn.Module:
    """One layer, with an output for each class that ImageFolder has found."""
    assert isinstance(found.train, ImageFolder)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, len(found.train.classes)))


folder = Recipe(
    data=data, model=model, defaults=Defaults(epochs=3, global_batch_size=8, learning_rate=0.1), heavy=False
)
