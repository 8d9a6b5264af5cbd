import subprocess
import sys
from pathlib import Path

from testbed import pids_with, wait_for

OWNER = """
import sys, time
from testbed.slurm import Slurm
with Slurm(nodes=1) as slurm:
    print(slurm.folder, flush=True)
    slurm.run("sbatch", "--wrap", "sleep 600 & sleep 600")
    print(slurm.run("squeue", "-h", "-o", "%T").stdout, flush=True)
    time.sleep(600)
"""


def processes_of(folder: str) -> set[int]:
    """What runs with that folder in its command line or environment."""
    return {*pids_with(folder, file="cmdline"), *pids_with(folder)}


def test_nothing_is_left_when_its_owner_is_killed(slurm):
    assert slurm, "as root, with Slurm installed"
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(Path.home()), "PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", OWNER], env=environ, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = owner.stdout.readline().strip()
        assert owner.stdout.readline().strip() in {"PENDING", "RUNNING", "CONFIGURING"}
        assert len(processes_of(folder)) >= 3, "munged, slurmctld, slurmd"
        owner.kill()
    wait_for("its guard to remove the folder", lambda: not Path(folder).exists())
    wait_for("all its processes to be gone", lambda: not processes_of(folder))
