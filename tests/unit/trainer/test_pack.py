"""One packed file instead of a folder: the same samples, byte for byte, and never half a file."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from ddpjob_ranks.errors import ConfigError
from ddpjob_recipes import pack
from ddpjob_recipes.decoded import load
from ddpjob_recipes.folder import open_folder
from ddpjob_trainer import recipes
from ddpjob_trainer.config import parse_config
from ddpjob_trainer.data import Preparation

CONFIG = recipes.resolve(parse_config({"recipe": "resnet18-cifar10"}))
PREPARATION = Preparation(mean=(0.0,) * 3, std=(1.0,) * 3, max_shift=0, flip="never")


@pytest.fixture
def folder(tmp_path):
    for value, name in enumerate(
        ["train/cat/b.png", "train/cat/a.jpg", "train/ant/x.png", "val/cat/1.png", "val/ant/1.png"]
    ):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (5, 4), (50 * value, 9, 200)).save(path)
    return tmp_path / "images"


def test_the_command_makes_a_file_that_equals_the_folder(folder, tmp_path):
    command = [sys.executable, "-m", "ddpjob_recipes.pack", str(folder), str(tmp_path / "one.pack")]
    done = subprocess.run(command, env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=True)
    assert "3 training and 2 held-out images of 2 classes" in done.stdout
    files, packed = open_folder(folder), pack.open_images(tmp_path / "one.pack")
    assert packed.classes == files.classes == ["ant", "cat"]
    for a, b in ((files.train, packed.train), (files.test, packed.test)):
        assert list(a.labels) == list(b.labels)
        assert [a.read(i) for i in range(len(a.labels))] == [b.read(i) for i in range(len(b.labels))]


def test_images_are_read_without_mapping_the_file(folder, tmp_path, monkeypatch):
    """A page fault on a mapped file keeps the GIL, and with it the training, until the storage answers."""
    path = tmp_path / "one.pack"
    pack.write_packed(open_folder(folder), path)
    monkeypatch.delattr("mmap.mmap")
    files, packed = open_folder(folder), pack.open_images(path)
    assert [packed.train.read(i) for i in range(3)] == [files.train.read(i) for i in range(3)]
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_a_file_that_becomes_shorter_is_an_error_of_the_storage(folder, tmp_path):
    path = tmp_path / "one.pack"
    pack.write_packed(open_folder(folder), path)
    packed = pack.open_images(path)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(
        OSError, match=r"where \d+ are expected; the file was replaced or cut off .*one\.pack: held-out image 1 \(b"
    ):
        packed.test.read(1)


def test_decoded_images_are_the_same_from_either(folder):
    plain: Any = load(folder, CONFIG, preparation=PREPARATION)
    pack.write_packed(open_folder(folder), folder / pack.FILE_NAME)
    for path in (folder, folder / pack.FILE_NAME):
        packed: Any = load(path, CONFIG, preparation=PREPARATION)
        assert torch.equal(packed.train.images_NCHW, plain.train.images_NCHW)
        assert torch.equal(packed.test.labels_N, plain.test.labels_N)


def test_a_packed_file_in_the_folder_is_preferred(folder):
    pack.write_packed(open_folder(folder), folder / pack.FILE_NAME)
    (folder / "train" / "cat" / "b.png").unlink()
    assert len(pack.open_images(folder).train.labels) == 3


@pytest.mark.parametrize("lost", [1, 40])
def test_a_file_that_is_cut_off_is_refused(folder, tmp_path, lost):
    path = tmp_path / "one.pack"
    pack.write_packed(open_folder(folder), path)
    path.write_bytes(path.read_bytes()[:-lost])
    with pytest.raises(ConfigError, match=r"one\.pack has \d+ bytes, but its index ends at \d+; copy or pack it again"):
        pack.open_images(path)


@pytest.mark.parametrize(
    "content", [b"", b"DDPJ", b"not a packed file at all", pack.MAGIC + b"\x05", pack.MAGIC + b"\xff" * 9]
)
def test_another_file_is_refused(tmp_path, content):
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(
        ConfigError, match=r"other is not a packed file .*; make one with python -m ddpjob_recipes\.pack FOLDER"
    ):
        pack.open_images(tmp_path / "other")


def test_a_failure_while_packing_leaves_no_file(folder, tmp_path):
    splits = open_folder(folder)
    Path(splits.test.name(1)).unlink()
    with pytest.raises(FileNotFoundError):
        pack.write_packed(splits, tmp_path / "one.pack")
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


def test_a_folder_without_classes_is_refused(tmp_path, capsys):
    assert pack.main([str(tmp_path), str(tmp_path / "one.pack")]) == 2
    assert "found no class folders" in capsys.readouterr().err
