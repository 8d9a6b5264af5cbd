import argparse

import pytest
import torch

from ddpjob_measure.__main__ import main
from ddpjob_measure.options import add_record, record_path
from ddpjob_ranks.errors import ConfigError


def given(tmp_path, *arguments):
    parser = argparse.ArgumentParser()
    add_record(parser, "speed")
    return parser.parse_args(["--results", str(tmp_path), *arguments])


def test_a_record_overwrites_no_other(tmp_path):
    first = record_path(given(tmp_path / "made"))
    assert first.name.startswith("speed-20")
    first.with_name(first.name + ".json").touch()
    assert record_path(given(tmp_path / "made")).name == f"{first.name}-2"
    assert record_path(given(tmp_path, "--name", "mine")) == tmp_path / "mine"


def test_a_folder_that_cannot_be_created_is_reported_before_anything_is_measured(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--results .*/file/below: cannot be created: Not a directory"):
        record_path(given(tmp_path / "file/below"))


@pytest.mark.parametrize(
    "arguments", [["buckets", "--steps", "0"], ["scale", "--windows", "0"], ["verify-resume", "--kills", "-1"]]
)
def test_a_number_below_1_is_refused(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert f"{arguments[1]}: found {arguments[2]}; expected an integer of 1 or more" in capsys.readouterr().err


PHOTOGRAPHS = "name a folder of them in DDPJOB_DATA_DIR, or measure resnet50-224-synthetic"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("accuracy --recipe resnet18-cifar10", "DDPJOB_DATA_DIR"),
        ("accuracy --recipe resnet18-cifar10", "DDPJOB_TEST_DATA"),
        ("accuracy --recipe resnet50-224-synthetic", "random pixels have nothing to learn"),
        ("accuracy --set seed=7", "--set seed=7: use --seeds"),
        ("accuracy --set recipe=digits", "--set recipe=digits: use --recipe"),
        ("accuracy --recipe resnet50-224", PHOTOGRAPHS),
        ("bench --recipes resnet50-224", PHOTOGRAPHS),
        ("scale --recipe resnet50-224", PHOTOGRAPHS),
        ("bench --batch 60000", "--batch is 60000; expected at most 50000"),
        ("compare ddp-options --ranks 1", "--ranks is 1"),
        ("compare sync-batch-norm", "found 0 GPUs; PyTorch has SyncBatchNorm for GPUs alone"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for variable in ("DDPJOB_DATA_DIR", "DDPJOB_TEST_DATA"):
        monkeypatch.delenv(variable, raising=False)
    assert main(arguments.split()) == 2
    assert message in capsys.readouterr().err


def test_every_command_is_listed(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "\n    verify-resume " in capsys.readouterr().out
