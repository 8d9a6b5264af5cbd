from pathlib import Path

from ddpjob_measure import images
from ddpjob_recipes.resnet_cifar10 import resnet18_cifar10
from ddpjob_trainer import recipes
from ddpjob_trainer.config import parse_config


def test_without_data_synthetic_images_are_drawn_and_said_to_be(monkeypatch):
    monkeypatch.delenv("DDPJOB_DATA_DIR", raising=False)
    monkeypatch.delenv("DDPJOB_TEST_DATA", raising=False)
    config = recipes.resolve(parse_config({"recipe": "resnet18-cifar10"}))
    with images.provided(["resnet18-cifar10"], num_train=25) as (environ, what):
        assert what == "30 synthetic images of CIFAR-10's size (random pixels)"
        assert len(resnet18_cifar10.data(Path(environ["DDPJOB_DATA_DIR"]), config).train) == 30


def test_a_recipe_with_data_of_its_own_needs_no_images(monkeypatch):
    monkeypatch.setenv("DDPJOB_DATA_DIR", "/nowhere")
    with images.provided(["digits", "resnet50-224-synthetic"], num_train=25) as found:
        assert found == ({}, "the recipe's own")


def test_a_folder_of_the_users_is_taken_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("DDPJOB_DATA_DIR", str(tmp_path))
    with images.provided(["resnet50-224"], num_train=10) as found:
        assert found == ({"DDPJOB_DATA_DIR": str(tmp_path)}, f"the images of {tmp_path}")
