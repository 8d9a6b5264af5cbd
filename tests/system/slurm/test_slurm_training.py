import sys
from pathlib import Path

from slurm_training import DIGITS, TRAINER, weights

SESSION = str(Path(__file__).parents[3] / "trainer/examples/minimal_session.py")
NODES = ("srun", "--kill-on-bad-exit=1", "--nodes=2", "--ntasks-per-node=1")


def test_two_nodes_by_srun_python(slurm, variables, expected_weights):
    done = slurm.run(*NODES, *TRAINER, *DIGITS, environment=variables)
    assert done.returncode == 0, done.stdout
    assert "launcher srun, world size 2" in done.stdout
    assert [line.split()[-1] for line in done.stdout.splitlines() if "  cpu " in line] == ["slurm-1", "slurm-2"]
    assert weights(done.stdout) == expected_weights


def test_two_nodes_by_srun_torchrun(slurm, variables, expected_weights):
    torchrun = ("torchrun", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=1")
    meeting = "--rdzv-endpoint=slurm-1:29950"
    done = slurm.run(*NODES, *torchrun, meeting, "-m", "ddpjob_trainer", *DIGITS, environment=variables)
    assert done.returncode == 0, done.stdout
    assert "launcher srun torchrun, world size 2" in done.stdout
    assert weights(done.stdout) == expected_weights


def test_a_script_with_a_session_on_two_nodes(slurm, variables):
    done = slurm.run(*NODES, sys.executable, SESSION, environment=variables)
    assert done.returncode == 0, done.stdout
    assert "launcher srun, world size 2" in done.stdout
    assert "2 ranks found y = 3.00x + 1.00" in done.stdout
