"""How many CPUs a process may use."""

import os
from collections.abc import Mapping
from pathlib import Path

from ddpjob_ranks import contract
from ddpjob_ranks.launch.identity import SLURM_STEP, TORCHRUN


def cpus_of_this_rank(environ: Mapping[str, str]) -> int:
    """Whole CPUs for this rank: its share of those that the ranks of its node may use together.

    Where srun has bound each of its tasks to CPUs of its own, all that this process may use are its own.
    """
    cpus = available_cpus()
    a_task_each = SLURM_STEP in environ and TORCHRUN not in environ and environ.get("SLURM_NTASKS", "1") != "1"
    if a_task_each and cpus < int(environ.get("SLURM_CPUS_ON_NODE") or 0):
        return cpus
    return max(1, cpus // int(environ.get(contract.LOCAL_WORLD_SIZE) or 1))


def available_cpus() -> int:
    """Whole CPUs that this process may use: its affinity, cut by the CPU limit of its cgroup (version 2, then 1)."""
    quota, period = "max", "100000"
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        try:
            quota = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text(encoding="ascii").strip()
        except OSError:
            pass
    cpus = len(os.sched_getaffinity(0))
    limited = quota.isdigit() and int(quota) > 0
    return max(1, min(cpus, int(quota) // int(period))) if limited else cpus
