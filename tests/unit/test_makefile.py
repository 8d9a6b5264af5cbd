"""`make` shows few targets, and every test file is run by one of the targets that `.ci/run` runs."""

import re
import subprocess
from pathlib import Path

import pytest

from support import REPOSITORY


def make(*arguments: str) -> str:
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout


def test_make_lists_ten_targets_and_where_the_others_are() -> None:
    first_page = make()
    assert len(first_page.splitlines()) == 10
    assert {"demo", "test", "setup", "test-unit", "help-all"} <= set(re.findall(r"make (\S+)", first_page))
    every_target = make("help-all")
    for file in (REPOSITORY / "hack").glob("*.mk"):
        for target in re.findall(r"^([a-z][a-z0-9-]*):.*## ", file.read_text(), re.MULTILINE):
            assert f"  make {target} " in every_target


def test_a_line_of_the_makefiles_fits_a_screen() -> None:
    for file in (REPOSITORY / "Makefile", *(REPOSITORY / "hack").glob("*.mk")):
        assert [line for line in file.read_text().splitlines() if len(line) > 120] == [], file


def given_to_pytest(*targets: str) -> list[Path]:
    """What pytest is given by these targets."""
    lines = make("--dry-run", *targets).replace("\\\n", " ").splitlines()
    pytest_lines = [line for line in lines if "/pytest " in line]
    return [REPOSITORY / path for line in pytest_lines for path in re.findall(r"\btests/[\w/.]+", line)]


@pytest.mark.parametrize("target", ["test-oldest-torch", "matrix", "test-pythons", "faults"])
def test_the_tests_that_a_target_names_are_there(target: str) -> None:
    assert [path for path in given_to_pytest(target) if not path.exists()] == []


def test_every_test_file_is_run_by_a_target_of_ci() -> None:
    ci = (REPOSITORY / ".ci/run").read_text()
    targets = re.findall(r"^ *(?:\w+=\d+ )?step (\S+)", ci, re.MULTILINE)
    run = given_to_pytest(*targets)
    files = [file for pattern in ("test_*.py", "*_test.py") for file in (REPOSITORY / "tests").rglob(pattern)]
    assert len(files) > 100
    assert [file for file in files if not {file, *file.parents} & set(run)] == []
