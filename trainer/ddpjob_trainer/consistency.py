"""What must be the same on all ranks before they train together: sources, configuration, recipe, data.

The training data must also be the same when a training is resumed, so the fingerprints of the data are in the checkpoints.
"""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ddpjob_ranks import checks
from ddpjob_ranks.distributed import Gang
from ddpjob_session import sources
from ddpjob_trainer import recipe_names
from ddpjob_trainer.config import ResolvedConfig, TrainerConfig
from ddpjob_trainer.data import ImageData
from ddpjob_trainer.state import HELD_OUT_DATA, TRAINING_DATA

#: Packages that take part in training.
PACKAGES: Final = ("ddpjob_ranks", "ddpjob_session", "ddpjob_trainer", "ddpjob_recipes")


def facts_of_program(config: TrainerConfig) -> Mapping[str, str]:
    """Fingerprint of the sources, and each value of the configuration, by name."""
    given = config.model_dump(by_alias=True)
    keys = {key: "the recipe's default" if value is None else json.dumps(value) for key, value in given.items()}
    return {"code": sources.of_packages(PACKAGES), **keys}


def recipe_fingerprint(name: str) -> str:
    """Hash of the sources that define a recipe: of all modules of its package, or of its module if that is in no package."""
    module = importlib.import_module(recipe_names.locate(name)[0])
    assert module.__file__ is not None, "it defines a recipe"
    file = Path(module.__file__)
    return sources.of_files(file.parent, file.parent.rglob("*.py") if module.__package__ else [file])


def check_recipe(gang: Gang, config: ResolvedConfig) -> None:
    """Check that all ranks have the same recipe, and with its defaults the same settings.

    `facts_of_program` cannot compare them: ranks compare that before they load any recipe.

    Raises:
        RefusedError: they differ; the text names the ranks and the setting.
    """
    values = config.model_dump(by_alias=True, exclude={"settings"})
    values |= {f"settings.{name}": value for name, value in config.settings.items()}
    same = {key: json.dumps(value) for key, value in values.items()}
    checks.check_same(gang, {"recipe's code": recipe_fingerprint(config.recipe), **same})


def check_data(gang: Gang, data: ImageData) -> Mapping[str, str]:
    """The fingerprints of both splits, which are the same on all ranks.

    Raises:
        RefusedError: the ranks have loaded different data.
    """
    fingerprints = {TRAINING_DATA: data.train.fingerprint(), HELD_OUT_DATA: data.test.fingerprint()}
    checks.check_same(gang, fingerprints)
    return fingerprints
