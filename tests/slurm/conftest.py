"""A real Slurm of two nodes for all tests of this folder, and the trainer's environment in its tasks."""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.slurm_training import trained_without_slurm
from testbed.slurm import Slurm


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """Two nodes, slurm-1 and slurm-2, with 8 CPUs and 2 pretended GPUs each."""
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons need root")
    with Slurm() as slurm:
        yield slurm


@pytest.fixture(scope="session")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """For a training: this Python first, no checkpoints, and no thread more than a task needs."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join(path for path in sys.path if path),
        "HOME": str(tmp_path_factory.mktemp("home")),
        "OMP_NUM_THREADS": "1",
        "DDPJOB_CHECKPOINT_DIR": "",
    }


@pytest.fixture(scope="session")
def expected_weights(variables: Mapping[str, str]) -> str:
    """What two ranks of the trainer's own launcher end with, without Slurm."""
    return trained_without_slurm(variables)
