"""Every exit code of the trainer's table, through its own launcher and through torchrun."""

import subprocess
import sys

import pytest

from ddpjob_operator.core.failure.log_parsing import worker_exit
from ddpjob_ranks import contract

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
    found = worker_exit(done.stderr)
    assert found.code == contract.EXIT_HUNG
