"""Ranks refuse to train together with different code, settings or data."""

import dataclasses

import pytest
import torch

from ddpjob_ranks.errors import ConfigError
from ddpjob_session import sources
from ddpjob_trainer import consistency, recipes
from ddpjob_trainer.config import parse_config
from ddpjob_trainer.consistency import PACKAGES, recipe_fingerprint
from ddpjob_trainer.data import Preparation, Split
from support.fakes import fake


def test_every_key_of_the_configuration_and_the_code_must_be_the_same():
    config = parse_config({"recipe": "digits", "epochs": 3})
    same = consistency.facts_of_program(config)
    assert same["epochs"] == "3"
    assert set(same) == {"code", *config.model_dump(by_alias=True)}


def test_code_that_differs_by_a_byte_or_a_name_has_another_fingerprint(tmp_path):
    file = tmp_path / "ddpjob_recipes/deep/model.py"
    file.parent.mkdir(parents=True)
    file.write_text("1")
    seen = [sources.of_packages(PACKAGES, tmp_path)]
    file.write_text("2")
    seen.append(sources.of_packages(PACKAGES, tmp_path))
    file.rename(file.with_name("other.py"))
    seen.append(sources.of_packages(PACKAGES, tmp_path))
    assert len(set(seen)) == 3
    (tmp_path / "ddpjob_recipes/cache.pyc").write_text("compiled")
    assert sources.of_packages(PACKAGES, tmp_path) == seen[-1]


def test_the_fingerprint_of_a_recipe_is_of_its_module_alone_or_of_the_package_that_the_module_is_in(
    tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "alone_recipe.py").write_text("1")
    (tmp_path / "recipe_package").mkdir()
    for name in ("__init__", "vision", "layers"):
        (tmp_path / f"recipe_package/{name}.py").write_text("1")
    names = ("alone_recipe:a", "recipe_package.vision:b")
    before = list(map(recipe_fingerprint, names))
    (tmp_path / "recipe_package/layers.py").write_text("2")
    assert [recipe_fingerprint(name) == found for name, found in zip(names, before, strict=True)] == [True, False]
    (tmp_path / "alone_recipe.py").write_text("2")
    assert recipe_fingerprint(names[0]) != before[0]


def test_a_default_of_a_setting_that_differs_between_ranks_is_refused_by_its_name():
    """One of a `default_factory` with a random value."""
    config = recipes.resolve(parse_config({"recipe": "digits"}))
    facts = []

    def check(rank: int, tag: str) -> None:
        gang = fake(rank=rank, all_gather=lambda mine: facts.append(mine) or facts)
        consistency.check_recipe(gang, config.model_copy(update={"settings": {"width": 3, "tag": tag}}))

    check(0, "a")
    expected = (
        r'preflight: settings\.tag differs: rank 1 \(.*\) has "b", rank 0 has "a"; .* set it in trainer\.settings$'
    )
    with pytest.raises(ConfigError, match=f"^{expected}"):
        check(1, "b")


def test_data_that_differ_in_a_label_a_pixel_or_their_number_have_another_fingerprint():
    preparation = Preparation(mean=(0.0,), std=(1.0,), max_shift=0, flip="never")
    images, labels = torch.zeros(600, 1, 2, 2, dtype=torch.uint8), torch.zeros(600, dtype=torch.int64)
    split = Split(images_NCHW=images, labels_N=labels, preparation=preparation)
    other_image, other_label = images.clone(), labels.clone()
    other_image[2, 0, 1, 1] = 1
    other_label[599] = 1
    variants = [
        split,
        dataclasses.replace(split, images_NCHW=other_image),
        dataclasses.replace(split, labels_N=other_label),
        dataclasses.replace(split, images_NCHW=images[:599], labels_N=labels[:599]),
    ]
    assert len({variant.fingerprint() for variant in variants}) == 4
    assert split.fingerprint() == dataclasses.replace(split, images_NCHW=images.clone()).fingerprint()
