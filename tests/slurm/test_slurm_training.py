import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

from ddpjob_ranks import contract
from support import REPOSITORY
from support.programs import PROGRAMS
from support.slurm_training import DIGITS, TRAINER, process_of_rank, weights
from testbed import wait_for

GATED = str(PROGRAMS / "gated_rank.py")

SESSION = str(REPOSITORY / "trainer/examples/minimal_session.py")
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


def test_a_killed_rank_starts_again_in_place_which_slurm_does_not_notice(slurm, variables, expected_weights, tmp_path):
    """One launcher per node, each with one rank, which is the task's child."""
    output = tmp_path / "output"
    launch = (*NODES, f"--output={output}", sys.executable, "-m", "ddpjob.launch", GATED, *DIGITS)
    gate = {"GATES": "3", "OPENED": str(tmp_path)}
    with ThreadPoolExecutor() as pool:
        running = pool.submit(
            slurm.run, *launch, environment={**variables, **gate, contract.DDPJOB_IN_PLACE_RESTARTS: "3"}
        )
        wait_for("the gate", lambda: output.exists() and "gate at step 3" in output.read_text(), seconds=200)
        os.kill(process_of_rank(1, tmp_path), signal.SIGKILL)
    done, text = running.result(), output.read_text()
    assert done.returncode == 0, done.stdout + text
    assert "rank 1 was killed by SIGKILL; all ranks start again in place (1 of at most 3 times)" in text
    assert "resumed from step 3 in memory: no step is lost" in text
    assert weights(text) == expected_weights
    assert "error" not in done.stdout, "what srun says of a task that fails"
