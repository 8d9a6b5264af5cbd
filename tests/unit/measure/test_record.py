import argparse

import pytest

from ddpjob_measure.__main__ import main
from ddpjob_measure.record import add_options, cell, path_of, table
from ddpjob_measure.task import Spread
from ddpjob_ranks.errors import ConfigError


def given(tmp_path, *arguments):
    parser = argparse.ArgumentParser()
    add_options(parser, "speed", results=None)
    return parser.parse_args(["--results", str(tmp_path), *arguments])


def test_a_record_overwrites_no_other(tmp_path):
    first = path_of(given(tmp_path / "made"))
    assert first.name.startswith("speed-20")
    first.with_name(first.name + ".json").touch()
    assert path_of(given(tmp_path / "made")).name == f"{first.name}-2"
    assert path_of(given(tmp_path, "--name", "mine")) == tmp_path / "mine"


def test_a_folder_that_cannot_be_created_is_reported_before_anything_is_measured(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--results .*/file/below: cannot be created: Not a directory"):
        path_of(given(tmp_path / "file/below"))


@pytest.mark.parametrize(
    "arguments", [["buckets", "--steps", "0"], ["gpu", "--seconds", "0"], ["verify-resume", "--kills", "-1"]]
)
def test_a_number_below_1_is_refused(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert f"{arguments[1]}: found {arguments[2]}; expected an integer of 1 or more" in capsys.readouterr().err


def test_every_command_is_listed(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "\n    verify-resume " in capsys.readouterr().out


def test_arguments_that_no_command_knows_are_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["buckets", "--set", "recipe=digits"])
    assert "unrecognized arguments: --set recipe=digits" in capsys.readouterr().err


def test_a_table_has_a_column_for_each_key_and_cells_of_readable_numbers():
    assert table([{"a": 1}, {"b": "x|y", "a": 12345.678}]) == "| a | b |\n| --- | --- |\n| 1 |  |\n| 12,346 | x/y |"
    assert cell(Spread.of([0.12345, 2.0, 1.0])) == "1 (0.1235 to 2)"


def test_without_a_folder_there_is_no_record():
    assert path_of(argparse.Namespace(results=None)) is None
