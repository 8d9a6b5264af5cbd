"""`operator/` and `trainer/` are source roots, not packages: `operator` is the name of a module of the standard library."""

import subprocess
import sys
from pathlib import Path

from support import REPOSITORY


def test_a_source_root_holds_no_module_at_its_top() -> None:
    """With `operator/__init__.py` Python would import that instead of the standard library's module, and not start."""
    assert [file for root in ("operator", "trainer") for file in (REPOSITORY / root).glob("*.py")] == []


def test_what_python_imports_is_the_code_of_this_checkout() -> None:
    """Not that of a copy which was installed before; without PYTHONPATH, as the console scripts of .venv start."""
    roots = [REPOSITORY / "operator", REPOSITORY / "trainer"]
    packages = sorted(
        {folder.name for root in roots for folder in root.glob("ddpjob_*") if (folder / "__init__.py").exists()}
    )
    ask = f"import importlib.util as i; [print(i.find_spec(name).origin) for name in {packages}]"
    done = subprocess.run([sys.executable, "-I", "-c", ask], cwd="/", capture_output=True, text=True, check=True)
    origins = [Path(origin) for origin in done.stdout.splitlines()]

    assert len(origins) == len(packages) > 6
    assert [origin for origin in origins if not any(origin.is_relative_to(root) for root in roots)] == []
