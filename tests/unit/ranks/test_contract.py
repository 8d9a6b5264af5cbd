import ast
import subprocess
import sys
from pathlib import Path

import pytest

from ddpjob_ranks import contract


def test_the_contract_needs_the_standard_library_only():
    tree = ast.parse(Path(contract.__file__).read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {module.partition(".")[0] for module in modules} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    "module",
    [
        *("ddpjob_ranks.contract", "ddpjob_ranks.launch.identity", "ddpjob_ranks.launch.launcher"),
        *("ddpjob_ranks.inspection", "ddpjob_trainer.config", "ddpjob_trainer.__main__"),
    ],
)
def test_what_others_import_or_run_does_not_load_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, timeout=60)
    assert done.returncode == 0


def test_every_exit_code_is_in_the_table_once():
    codes = [value for name, value in vars(contract).items() if name.startswith("EXIT_") and isinstance(value, int)]
    assert sorted(codes) == sorted(contract.EXIT_CODES)
