"""What pods and operator share: names of variables, and every exit code, through our launcher and through torchrun."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from ddpjob_operator.core.failure.log_parsing import end_of_log
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


LAUNCHER = """
import os, sys
from ddpjob_ranks.launch import identity, launcher
sys.exit(launcher.run(identity.resolve(os.environ), ["sh", "-c", sys.argv[1]], os.environ))
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python", "sh", "-c")


def ended(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), **variables}
    return subprocess.run([sys.executable, *command], env=environ, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("code", contract.EXIT_CODES)
def test_the_launcher_passes_every_code_of_the_table_on(code):
    done = ended("-c", LAUNCHER, f"exit {code}", NPROC_PER_NODE="2")
    assert done.returncode == code, done.stderr


def test_ranks_that_end_at_the_same_moment_end_with_their_code():
    for _ in range(3):
        done = ended("-c", LAUNCHER, f"exit {contract.EXIT_HUNG}", NPROC_PER_NODE="24")
        assert done.returncode == contract.EXIT_HUNG, done.stderr


def test_under_torchrun_the_code_is_in_its_table():
    done = ended(*TORCHRUN, f"exit {contract.EXIT_HUNG}")
    assert done.returncode == 1, "torchrun makes 1 of every failure"
    found = end_of_log(done.stderr).worker
    assert found.code == contract.EXIT_HUNG
