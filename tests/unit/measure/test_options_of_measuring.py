import argparse

import pytest

from ddpjob_measure.__main__ import main
from ddpjob_measure.options import add_record, record_path
from ddpjob_ranks.errors import ConfigError


def given(tmp_path, *arguments):
    parser = argparse.ArgumentParser()
    add_record(parser, "speed")
    return parser.parse_args(["--results", str(tmp_path), *arguments])


def test_a_record_takes_no_others_place(tmp_path):
    first = record_path(given(tmp_path / "made"))
    assert first.name.startswith("speed-20")
    first.with_name(first.name + ".json").touch()
    assert record_path(given(tmp_path / "made")).name == f"{first.name}-2"
    assert record_path(given(tmp_path, "--name", "mine")) == tmp_path / "mine"


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_measured(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--results .*/file/below: cannot be created: Not a directory"):
        record_path(given(tmp_path / "file/below"))


@pytest.mark.parametrize(
    "arguments", [["buckets", "--steps", "0"], ["scale", "--windows", "0"], ["verify-resume", "--kills", "-1"]]
)
def test_numbers_that_cannot_be_are_told(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert f"{arguments[1]}: found {arguments[2]}; expected an integer of 1 or more" in capsys.readouterr().err


def test_every_command_is_listed(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "\n    verify-resume " in capsys.readouterr().out
