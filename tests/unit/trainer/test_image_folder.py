import hashlib
import io
import json

import pytest
import torch
from PIL import Image

from ddpjob_ranks.errors import ConfigError
from ddpjob_recipes import decoded
from ddpjob_recipes.resnet_cifar10 import resnet18_cifar10, resnet50_cifar10
from ddpjob_trainer import recipes
from ddpjob_trainer.config import parse_config
from ddpjob_trainer.data import ImageData


def load(folder, **values):
    config = recipes.resolve(parse_config({"recipe": "resnet18-cifar10", **values}))
    return resnet18_cifar10.data(folder, config)


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


def test_an_image_that_cannot_be_decoded_is_named(folder):
    (folder / "train" / "cat" / "c.jpg").write_bytes(b"no image")
    with pytest.raises(ConfigError, match=r"cat/c.jpg cannot be decoded: .*; replace or remove it, or set maxUnreadab"):
        load(folder)


def test_images_that_cannot_be_decoded_are_skipped_if_the_user_allows_it(folder, capsys, monkeypatch):
    monkeypatch.setenv("DDPJOB_CACHE_DIR", str(folder / "cache"))
    whole = load(folder)
    (folder / "train" / "cat" / "aa.png").write_bytes(b"no image")
    (folder / "test" / "cat" / "2.jpg").write_bytes(b"no image")
    data = load(folder, maxUnreadableImages=2)
    assert data.train.labels_N.tolist() == [0, 1, 1, 1], "each sample keeps its number"
    assert torch.equal(data.train.images_NCHW[2], data.train.images_NCHW[3]), "the next one in its place"
    assert torch.equal(data.train.images_NCHW[[0, 1, 3]], whole.train.images_NCHW)
    assert torch.equal(data.test.images_NCHW, whole.test.images_NCHW), "evaluation leaves it out"
    log = capsys.readouterr().err
    assert "train/cat/aa.png cannot be decoded" in log
    assert "test/cat/2.jpg cannot be decoded" in log
    assert "skipped (2 of 2 allowed)" in log
    load(folder, maxUnreadableImages=2)
    log = capsys.readouterr().err
    assert "data: read from the cache" in log
    skipped = f"{folder}/train/cat/aa.png, {folder}/test/cat/2.jpg"
    assert f"data: 2 skipped, since they cannot be decoded: {skipped}\n" in log
    with pytest.raises(ConfigError, match=r"cannot be decoded: .*; 1 other was skipped; replace or remove it"):
        load(folder, maxUnreadableImages=1)


def test_the_fingerprint_is_that_of_the_files_and_not_of_the_pixels(folder, monkeypatch):
    """Processors and versions of libjpeg may decode the same file to pixels that differ in the last bit."""
    before = load(folder).train.fingerprint()
    plain = decoded.rgb
    monkeypatch.setattr(decoded, "rgb", lambda image: plain(image) ^ 1)
    assert load(folder).train.fingerprint() == before
    write(folder / "train" / "cat" / "a.png", 9)
    assert load(folder).train.fingerprint() != before


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no class folders"):
        load(tmp_path)


@pytest.mark.parametrize(("recipe", "channels"), [(resnet18_cifar10, 64), (resnet50_cifar10, 256)])
def test_the_stem_keeps_the_resolution_of_small_images_and_the_head_fits_the_classes(recipe, channels):
    network = recipe.model(ImageData(train=None, test=None, num_classes=10))
    stem = torch.nn.Sequential(network.conv1, network.bn1, network.relu, network.maxpool, network.layer1)
    assert stem(torch.zeros(1, 3, 32, 32)).shape == (1, channels, 32, 32)
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_decoded_images_are_read_from_the_cache_while_their_files_are_the_same(folder, tmp_path, monkeypatch):
    plain = load(folder)
    cache = tmp_path / "cache"
    monkeypatch.setenv("DDPJOB_CACHE_DIR", str(cache))
    calls: list[str] = []
    decode = decoded._decode
    monkeypatch.setattr(decoded, "_decode", lambda *given: calls.append("decoded") or decode(*given))

    def same() -> bool:
        data = load(folder)
        return (
            torch.equal(data.train.images_NCHW, plain.train.images_NCHW)
            and torch.equal(data.train.labels_N, plain.train.labels_N)
            and torch.equal(data.test.images_NCHW, plain.test.images_NCHW)
            and data.train.stored_fingerprint == plain.train.stored_fingerprint
        )

    monkeypatch.setenv("LOCAL_RANK", "1")
    assert same()
    assert not cache.exists(), "one rank of a node writes"
    monkeypatch.delenv("LOCAL_RANK")
    assert same()
    assert same()
    assert len(calls) == 2, "the third run decoded nothing"

    (entry,) = cache.glob("decoded/*.pt")
    entry.write_bytes(entry.read_bytes()[:-100])
    assert same(), "a damaged entry is made again"
    assert same()
    assert len(calls) == 3

    entry.with_suffix(".json").write_text("[" * 100_000)
    assert same()
    a_list = io.BytesIO()
    torch.save([1], a_list)
    for content in (b"junk", a_list.getvalue()):
        entry.write_bytes(content)
        entry.with_suffix(".json").write_text(json.dumps({"sha256": hashlib.sha256(content).hexdigest()}))
        assert same(), "so is an entry that somebody else has forged"

    write(folder / "train" / "cat" / "b.png", 77)
    assert load(folder).train.images_NCHW[2, 0, 0, 0] == 77
    cache.joinpath("decoded").rename(tmp_path / "moved")
    cache.joinpath("decoded").write_text("a file in the place of the folder")
    assert load(folder).train.images_NCHW[2, 0, 0, 0] == 77, "a cache that cannot be written ends no training"
