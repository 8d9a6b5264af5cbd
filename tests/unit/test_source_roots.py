"""`operator/` and `trainer/` are source roots, not packages: `operator` is the name of a module of the standard library."""

import subprocess
import sys
import sysconfig
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_a_source_root_holds_no_module_at_its_top() -> None:
    assert [file for root in ("operator", "trainer") for file in (REPOSITORY / root).glob("*.py")] == []


def test_python_starts_in_the_repository_with_it_on_the_path() -> None:
    """With `operator/__init__.py` this Python would import that instead of the standard library's module, and not start."""
    command = [sys.executable, "-c", "import operator; print(operator.__file__)"]

    done = subprocess.run(
        command, cwd=REPOSITORY, env={"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == f"{sysconfig.get_path('stdlib')}/operator.py"
