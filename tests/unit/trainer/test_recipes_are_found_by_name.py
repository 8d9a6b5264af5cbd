import subprocess
import sys
from typing import get_args

import pytest
import torch

from ddpjob_trainer import config, recipes
from ddpjob_trainer.config import RECIPE_DEFAULTS, parse_config

SMALL = {"digits": (1, 8), "resnet18-cifar10": (3, 32), "resnet50-cifar10": (3, 32), "speedrun-cifar10": (3, 32)}


@pytest.mark.parametrize("name", get_args(config.Recipe))
def test_every_recipe_of_the_configuration_is_there_and_gives_a_network_with_the_right_head(name):
    recipe = recipes.find(name)
    channels, size = SMALL.get(name, (3, 64))
    with torch.no_grad():
        network = recipe.model(7).eval()
        assert recipe.predict(network, torch.rand(2, channels, size, size)).shape == (2, 7)


def test_defaults_and_modules_are_of_the_same_recipes():
    assert set(RECIPE_DEFAULTS) == set(recipes.MODULES) == set(get_args(config.Recipe))


def test_the_optimizer_of_every_recipe_has_each_trained_parameter_once():
    for name in SMALL:
        recipe = recipes.find(name)
        network = recipe.model(10)
        optimizer = recipe.optimizer(network, parse_config({"recipe": name}))
        held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
        assert sorted(held) == sorted(id(p) for p in network.parameters() if p.requires_grad), name


def test_the_digits_need_neither_torchvision_nor_pillow_nor_the_compiler():
    program = """
import sys, torch
before = set(sys.modules)
from ddpjob_trainer import recipes, numerics
from ddpjob_trainer.config import parse_config
from ddpjob_ranks.distributed import Gang
recipe = recipes.find("digits")
alone = Gang(rank=0, world_size=1, device=torch.device("cpu"), control=None)
numerics.choose(parse_config({"recipe": "digits"}), alone, heavy=recipe.heavy).set_switches()
print(sorted({"torchvision", "PIL", "sklearn", "torch._inductor"} & (set(sys.modules) - before)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def environment() -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(path for path in sys.path if path)}
