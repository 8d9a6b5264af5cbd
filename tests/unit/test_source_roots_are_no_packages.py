"""`operator` is a stdlib module: the folder of that name must never become a package."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("root", ["operator", "trainer"])
def test_a_source_root_holds_no_module_at_its_top(root: str) -> None:
    assert not list((REPOSITORY / root).glob("*.py"))


def test_operator_is_the_stdlib_module() -> None:
    stdlib = sysconfig.get_path("stdlib")

    assert sys.modules["operator"].__file__ == f"{stdlib}/operator.py"


def test_python_starts_in_the_repository_with_it_on_the_path() -> None:
    command = [sys.executable, "-c", "import collections, operator; print(operator.__file__)"]

    done = subprocess.run(
        command, cwd=REPOSITORY, env={"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == f"{sysconfig.get_path('stdlib')}/operator.py"
