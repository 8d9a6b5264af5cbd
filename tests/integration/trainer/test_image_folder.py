import pytest
import torch
from PIL import Image

from ddpjob_ranks.errors import ConfigError
from ddpjob_recipes.resnet_cifar10 import RECIPES

load = RECIPES["resnet18-cifar10"].load


@pytest.fixture
def folder(tmp_path):
    """Two classes; each training image is one grey of its own, the test images are JPEG."""
    for value, name in enumerate(["cat/b.png", "cat/a.png", "ant/x.png"]):
        write(tmp_path / "train" / name, value)
    write(tmp_path / "test" / "cat" / "1.jpg", 200)
    write(tmp_path / "test" / "ant" / "1.jpeg", 100)
    (tmp_path / "train" / "ant" / "notes.txt").write_text("not an image")
    return tmp_path


def write(path, value, size=4):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), (value, value, value)).save(path)


def test_samples_are_ordered_by_class_and_file(folder):
    data = load(folder)
    assert data.num_classes == 2
    assert data.train.images_NCHW.dtype == torch.uint8
    assert data.train.images_NCHW[:, 0, 0, 0].tolist() == [2, 1, 0]
    assert data.train.labels_N.tolist() == [0, 1, 1]
    assert data.test.labels_N.tolist() == [0, 1]
    # What JPEG loses of an even grey. Its arithmetic is in integers and the same on all processors.
    assert abs(int(data.test.images_NCHW[1, 0, 0, 0]) - 200) <= 2


def test_other_classes_in_the_test_split_are_refused(folder):
    write(folder / "test" / "dog" / "1.jpg", 1)
    with pytest.raises(ConfigError, match="hold different classes"):
        load(folder)


def test_an_image_of_another_size_is_named(folder):
    write(folder / "train" / "cat" / "c.png", 1, size=5)
    with pytest.raises(ConfigError, match=r"cat/c.png is \(3, 5, 5\)"):
        load(folder)


def test_an_image_that_is_none_is_named(folder):
    (folder / "train" / "cat" / "c.jpg").write_bytes(b"no image")
    with pytest.raises(ConfigError, match=r"cat/c.jpg cannot be decoded"):
        load(folder)


def test_an_empty_folder_is_told(tmp_path):
    with pytest.raises(ConfigError, match="no class folders"):
        load(tmp_path)


@pytest.mark.parametrize(("name", "channels"), [("resnet18-cifar10", 64), ("resnet50-cifar10", 256)])
def test_the_stem_keeps_the_resolution_of_small_images_and_the_head_fits_the_classes(name, channels):
    network = RECIPES[name].model(10)
    stem = torch.nn.Sequential(network.conv1, network.bn1, network.relu, network.maxpool, network.layer1)
    assert stem(torch.zeros(1, 3, 32, 32)).shape == (1, channels, 32, 32)
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
