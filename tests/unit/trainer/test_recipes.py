"""Recipes: found by name or by module and object, each with a network, an optimizer and defaults of its own."""

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from pydantic import BaseModel

from ddpjob_ranks.errors import ConfigError
from ddpjob_recipes import speedrun
from ddpjob_trainer import recipes
from ddpjob_trainer.config import as_recorded, parse_config
from ddpjob_trainer.data import Batch, ImageData, Split
from ddpjob_trainer.loading import Data
from ddpjob_trainer.losses import cross_entropy, weighted
from ddpjob_trainer.metrics import Mean
from ddpjob_trainer.recipe_names import short_names
from support.fakes import fake

SMALL = {"digits": (1, 8), "resnet18-cifar10": (3, 32), "resnet50-cifar10": (3, 32), "speedrun-cifar10": (3, 32)}
README = Path(__file__).parents[3] / "trainer/README.md"


def images(channels: int, size: int, *, num_classes: int) -> ImageData:
    """Random images."""
    split = Split(
        images_NCHW=torch.randint(0, 256, (8, channels, size, size), dtype=torch.uint8),
        labels_N=torch.arange(8) % num_classes,
        preparation=speedrun.PREPARATION,
    )
    return ImageData(train=split, test=split, num_classes=num_classes)


@pytest.mark.parametrize("name", short_names())
def test_every_built_in_recipe_gives_a_network_with_the_right_head(name):
    recipe = recipes.find(name)
    channels, size = SMALL.get(name, (3, 64))
    data: Any = images(channels, size, num_classes=7)
    batch = (torch.rand(2, channels, size, size), None)
    if name == "resnet50-224":  # photographs, in bytes
        data = Data(train=fake(classes=range(7)), test=fake())
        batch = torch.randint(0, 256, (2, size, size, channels), dtype=torch.uint8), None
    with torch.no_grad():
        network = recipe.model(data).eval()
        for forward in (recipe.forward, recipe.test_time_forward or recipe.forward):
            assert forward(network, batch).shape == (2, 7)


@pytest.mark.parametrize("name", short_names())
def test_what_is_not_given_comes_from_the_recipe(name):
    config = recipes.resolve(parse_config({"recipe": name}))
    defaults = asdict(recipes.find(name).defaults)
    assert {field: getattr(config, field) for field in defaults} == defaults
    given = recipes.resolve(parse_config({"recipe": name, "epochs": 7, "momentum": 0}))
    assert (given.epochs, given.momentum, given.weight_decay) == (7, 0, defaults["weight_decay"])


def test_the_readme_has_the_defaults_of_every_recipe():
    rows = [
        f"| `{name}` | "
        + " | ".join(f"{value:g}" for value in list(asdict(recipes.find(name).defaults).values())[:6])
        + " |"
        for name in short_names()
    ]
    assert set(rows) <= set(README.read_text(encoding="utf-8").splitlines()), "expected:\n" + "\n".join(rows)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("digit", "recipe is 'digit'; expected one of digits, resnet18-cifar10, .* or module:object"),
        (
            "nowhere.at_all:x",
            rf"there is no module nowhere in {Path.cwd()}, where this run started, nor in .* set PYTHONPATH",
        ),
        ("ddpjob_recipes.nowhere:x", "there is no module ddpjob_recipes.nowhere"),
        (
            "ddpjob_recipes.digits:zzzz",
            "module ddpjob_recipes.digits has no zzzz; define it there, or correct the name",
        ),
        ("ddpjob_recipes.digits:lode", "has no lode; perhaps load or model is meant"),
        ("ddpjob_recipes.digits:ImageDate", "has no ImageDate; define it there"),  # ImageData is no recipe
        (
            "ddpjob_recipes.digits:load",
            "recipe is 'ddpjob_recipes.digits:load', which is of type function; expected an object",
        ),
    ],
)
def test_a_recipe_that_does_not_exist_is_refused(name, text):
    with pytest.raises(ConfigError, match=text):
        recipes.find(name)


@pytest.mark.parametrize("metric", ["loss", "top 5", "a" * 25])
def test_a_name_of_a_metric_is_checked_before_the_training(monkeypatch, metric):
    digits = recipes.find("digits")
    odd = replace(digits, metrics={**digits.metrics, metric: digits.metrics["accuracy"]})
    monkeypatch.setattr("ddpjob_recipes.digits.RECIPE", odd, raising=False)
    with pytest.raises(ConfigError, match=metric):
        recipes.find("ddpjob_recipes.digits:RECIPE")


def test_a_metric_in_place_of_a_function_that_makes_one_is_refused_before_the_training(monkeypatch):
    odd = replace(recipes.find("digits"), metrics={"error": cast("Any", Mean(cross_entropy))})
    monkeypatch.setattr("ddpjob_recipes.digits.RECIPE", odd, raising=False)
    with pytest.raises(
        ConfigError, match=r"metrics\['error'\] is a Mean; expected a function .* such as lambda: Mean\("
    ):
        recipes.find("ddpjob_recipes.digits:RECIPE")


def test_a_module_that_a_recipe_imports_and_that_is_missing_is_no_mistake_of_the_name(tmp_path, monkeypatch):
    (tmp_path / "recipe_of_a_user.py").write_text("import nowhere")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'nowhere'"):
        recipes.find("recipe_of_a_user:mine")


def test_the_optimizer_of_every_recipe_has_each_trained_parameter_once():
    for name in SMALL:
        recipe = recipes.find(name)
        network = recipe.model(images(*SMALL[name], num_classes=10))
        optimizer = recipe.optimizer(network, recipes.resolve(parse_config({"recipe": name})))
        held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
        assert sorted(held) == sorted(id(p) for p in network.parameters() if p.requires_grad), name


def test_the_digits_need_neither_torchvision_nor_pillow_nor_the_compiler():
    program = """
import sys, torch
before = set(sys.modules)
from ddpjob_trainer import recipes, numerics
from ddpjob_trainer.config import parse_config
from ddpjob_trainer.data import Batch, ImageData, Split
from ddpjob_trainer.losses import weighted
from ddpjob_trainer.recipe_names import short_names
from ddpjob_ranks.distributed import Gang
recipe = recipes.find("digits")
alone = Gang(rank=0, world_size=1, device=torch.device("cpu"), control=None)
numerics.choose(parse_config({"recipe": "digits"}), alone, heavy=recipe.heavy).set_switches()
print(sorted({"torchvision", "PIL", "sklearn", "torch._inductor"} & (set(sys.modules) - before)))
"""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


OWN = """
from itertools import count

from pydantic import BaseModel, Field, SecretStr
from ddpjob.recipe import Recipe

class Settings(BaseModel):
    width: int = Field(ge=1)
    dropout: float = Field(default=0.1, alias="dropOut")
    key: SecretStr = SecretStr("hidden")

class ByName(Settings, populate_by_name=True):
    width: int = 1

def either(settings: ByName) -> Recipe:
    return made(settings)

numbers = count(1)

class Numbered(BaseModel):
    number: int = Field(default_factory=lambda: next(numbers))

def numbered(settings: Numbered) -> Recipe:
    return Recipe(data=lambda folder, config: settings, model=lambda data: None)

def made(settings: Settings) -> Recipe:
    return Recipe(data=lambda folder, config: settings, model=lambda data: None)

plain = Recipe(data=None, model=None)
odd = Recipe(data=None, model=None, best="top5")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The recipes in OWN, as a module of the name that is returned."""
    name = f"recipes-of-{tmp_path.name}"  # as a file may be called
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_settings_are_values_of_the_recipes_own_model(own):
    recipe, _ = recipes.load(parse_config({"recipe": f"{own}:made", "settings": {"width": 3, "dropOut": 0.5}}))
    settings = recipe.data(None, None)
    assert (settings.width, settings.dropout, settings.key.get_secret_value()) == (3, 0.5, "hidden")


@pytest.mark.parametrize(
    ("recipe", "given"),
    [
        ("made", {"width": 3}),
        ("made", {"width": 3, "dropOut": 0.1}),
        ("made", {"width": "3"}),
        ("either", {"width": 3, "dropout": 0.1}),
        ("either", {"width": 3, "dropOut": 0.1}),
    ],
)
def test_settings_are_recorded_and_compared_as_they_are_used(own, recipe, given):
    config = recipes.resolve(parse_config({"recipe": f"{own}:{recipe}", "settings": given}))
    assert config.settings == {"width": 3, "dropOut": 0.1, "key": "**********"}


def test_settings_are_validated_once(own):
    """A validator may be slow, and give another value each time."""
    recipe, config = recipes.load(parse_config({"recipe": f"{own}:numbered"}))
    assert (recipe.data(None, None).number, config.settings) == (1, {"number": 1})


def test_settings_are_recorded_in_the_same_way_by_each_process():
    """The order of a set differs between them, and not every value has a form in JSON."""

    class Settings(BaseModel):
        kinds: set[str]
        raw: bytes = b"\xff"

    found = as_recorded(Settings(kinds=["c", "a", "b"]))
    assert found == {"kinds": ["a", "b", "c"], "raw": "_w=="}


@pytest.mark.parametrize(
    ("recipe", "given", "text"),
    [
        ("made", {"width": 3, "widht": 4}, r"unknown key trainer\.settings\.widht; did you mean width\?"),
        (
            "made",
            {"width": 3, "layers": 4},
            r"unknown key trainer\.settings\.layers; expected one of: width, dropOut, key",
        ),
        ("made", {"width": 3, "dropout": 0.5}, r"unknown key trainer\.settings\.dropout; did you mean dropOut\?"),
        ("either", {"dropOut": 2, "drop_out": 3}, r"unknown key trainer\.settings\.drop_out; did you mean dropOut\?"),
        ("made", {"width": "wide"}, r"trainer\.settings\.width is 'wide'; it should be a valid integer$"),
        ("made", {"width": 0}, "settings.width is 0; it should be greater than or equal to 1"),
        ("made", {}, "settings.width is missing"),
        ("plain", {"width": 3}, "settings has width, but recipe .*plain has no settings"),
        ("odd", {}, "best is 'top5'; expected one of accuracy"),
    ],
)
def test_wrong_settings_are_refused_with_the_field(own, recipe, given, text):
    with pytest.raises(ConfigError, match=text):
        recipes.load(parse_config({"recipe": f"{own}:{recipe}", "settings": given}))


@pytest.mark.parametrize(
    ("given", "text"),
    [({"text": "x" * 20_000}, "up to 16384 bytes"), ({str(key): 0 for key in range(65)}, "at most 64 items")],
)
def test_the_size_of_settings_is_bounded(given, text):
    with pytest.raises(ConfigError, match=text):
        parse_config({"recipe": "digits", "settings": given})


def test_an_installed_package_gives_its_recipes_short_names_but_no_built_in_one(own, tmp_path):
    metadata = tmp_path / "of_others.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: of-others\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[ddpjob.recipes]\ntheirs = {own}:plain\ndigits = {own}:plain\n")
    short_names.cache_clear()
    try:
        assert recipes.find("theirs").headline == "accuracy"
        assert short_names()["digits"] == "ddpjob_recipes.digits:digits"
    finally:
        short_names.cache_clear()


@pytest.mark.parametrize("values", [[1.0, 2.0, 6.0], [[1.0, 1.0], [2.0, 2.0], [6.0, 6.0]], 3.0])
def test_a_loss_counts_each_sample_once_whatever_its_shape_and_parts(values):
    loss = torch.tensor(values)
    batch = Batch(content=(torch.arange(3),), num_samples=3, weight=1 / 3)
    parts = [weighted(loss[part.content[0]] if loss.ndim else loss, part) for part in batch.parts(2)]
    assert len(parts) == 2
    assert sum(parts).item() == pytest.approx(3.0)


def test_smoothing_spreads_a_share_of_each_target_over_all_classes():
    logits, labels = torch.tensor([[2.0, 0.0, -1.0], [0.5, 1.5, 0.0]]), torch.tensor([0, 2])
    logs = logits - logits.exp().sum(dim=1, keepdim=True).log()
    expected = -0.7 * logs[[0, 1], labels] - 0.3 * logs.mean(dim=1)
    torch.testing.assert_close(cross_entropy(logits, (None, labels), label_smoothing=0.3), expected)
