from ddpjob_measure import images
from ddpjob_recipes.resnet_cifar10 import RECIPES


def test_without_data_synthetic_images_are_drawn_and_said_to_be(tmp_path, monkeypatch):
    monkeypatch.delenv("DDPJOB_DATA_DIR", raising=False)
    monkeypatch.delenv("DDPJOB_TEST_DATA", raising=False)

    folder, what = images.provide(tmp_path, ["digits"], num_train=25)

    assert what == "30 synthetic images of CIFAR-10's size (random pixels)"
    assert len(RECIPES["resnet18-cifar10"].load(folder).train) == 30


def test_a_folder_of_the_users_is_taken_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("DDPJOB_DATA_DIR", str(tmp_path))

    assert images.provide(tmp_path / "unused", ["resnet50-224"], num_train=10) == (
        tmp_path,
        f"the images of {tmp_path}",
    )
