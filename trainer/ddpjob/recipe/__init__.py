"""Your own recipe: what to train, on what data, and how, for the built-in trainer.

    def data(folder: Path, config: Config) -> Data:
        return Data(train=ImageFolder(folder / "train", transform), test=ImageFolder(folder / "test", transform))


    def model(data: Data) -> nn.Module:
        return torchvision.models.vit_b_16(num_classes=len(data.train.classes))


    vit = Recipe(data=data, model=model, optimizer=adamw, defaults=Defaults(epochs=20, learning_rate=1e-3))

A job uses it as `trainer.recipe: my_package.vision:vit`. A function that takes a pydantic model and returns a Recipe makes
a recipe with settings: the job's `trainer.settings` are checked by that model. An entry point of the group
`ddpjob.recipes` gives a recipe a short name.

The names listed in `__all__`, the arguments of each and the fields of `Recipe`, `Defaults` and `Data` follow semantic
versioning: they change incompatibly with a new major version only, before 1.0 with a new minor version.
"""

from ddpjob_ranks.errors import ConfigError
from ddpjob_trainer.config import Defaults
from ddpjob_trainer.config import ResolvedConfig as Config
from ddpjob_trainer.data import ImageData, Preparation, Split
from ddpjob_trainer.loading import Data, MapStyle
from ddpjob_trainer.losses import cross_entropy
from ddpjob_trainer.metrics import Mean, Metric, accuracy, correct
from ddpjob_trainer.optim import adamw, constant, cosine, linear, sgd
from ddpjob_trainer.recipes import Recipe

__all__ = [
    "Config",
    "ConfigError",
    "Data",
    "Defaults",
    "ImageData",
    "MapStyle",
    "Mean",
    "Metric",
    "Preparation",
    "Recipe",
    "Split",
    "accuracy",
    "adamw",
    "constant",
    "correct",
    "cosine",
    "cross_entropy",
    "linear",
    "sgd",
]
