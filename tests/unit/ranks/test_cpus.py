"""How many CPUs a rank may use."""

import os
from pathlib import Path

import pytest

from ddpjob_ranks import cpus
from ddpjob_ranks.cpus import available_cpus, cpus_of_this_rank

SRUN = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "8", "SLURM_CPUS_ON_NODE": "64", "LOCAL_WORLD_SIZE": "4"}
V2, V1 = "/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({V2: "max 100000"}, 8),
        ({V2: "250000 100000"}, 2),
        ({V2: "50000 100000"}, 1),
        ({V1: "1"}, 1),
        ({V2: "1600000 100000"}, 8),
        ({V1: "300000"}, 3),
        ({V1: "-1"}, 8),
        ({}, 8),
    ],
)
def test_the_cpu_limit_of_the_control_group_cuts_the_affinity(monkeypatch, files, expected):
    def read_text(path, **_):
        try:
            return files[str(path)] + "\n"
        except KeyError:
            raise FileNotFoundError(path) from None

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(Path, "read_text", read_text)
    assert available_cpus() == expected


@pytest.mark.parametrize(
    ("available", "environ", "expected"),
    [
        (16, {}, 16),
        (16, {"LOCAL_WORLD_SIZE": "3"}, 5),
        (2, {"LOCAL_WORLD_SIZE": "4"}, 1),
        (16, SRUN, 16),  # bound: the CPUs of this task alone
        (64, SRUN, 16),  # not bound
        (16, {**SRUN, "TORCHELASTIC_RUN_ID": "none"}, 4),  # torchrun's processes share what its task may use
        (16, {**SRUN, "SLURM_NTASKS": "1"}, 4),  # and so do those of the launcher
    ],
)
def test_the_ranks_of_a_node_share_its_cpus_unless_srun_has_shared_them_out(monkeypatch, available, environ, expected):
    monkeypatch.setattr(cpus, "available_cpus", lambda: available)
    assert cpus_of_this_rank(environ) == expected
