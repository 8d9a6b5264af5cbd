"""Trainings of the digits under Slurm, and what their output says."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from testbed import pids_with

TRAINER = (sys.executable, "-m", "ddpjob_trainer")
DIGITS = ("--set", "recipe=digits", "-e", "1", "-b", "256")


def weights(text: str) -> str:
    """The digest of the final parameters, which is printed once."""
    digest: str
    (digest,) = re.findall(r"^weights sha256 (\w+)$", text, re.MULTILINE)
    return digest


def trained_without_slurm(variables: Mapping[str, str]) -> str:
    """The digest of the same training by two ranks of the trainer's own launcher."""
    done = subprocess.run(
        [*TRAINER, *DIGITS],
        env={**variables, "NPROC_PER_NODE": "2"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return weights(done.stdout)


def process_of_rank(rank: int, folder: Path) -> int:
    """The pid on this machine of a rank that was started in place, of the training whose launcher has the folder in a variable."""
    (pid,) = pids_with(folder, name=f"rank {rank}")
    return pid
