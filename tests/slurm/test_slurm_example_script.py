import pytest

from ddpjob_ranks import contract
from support import REPOSITORY
from support.slurm_training import DIGITS, weights
from testbed import wait_for

SCRIPT = REPOSITORY / "trainer/examples/slurm.sbatch"


@pytest.mark.parametrize(("chosen", "expected"), [("", "launcher srun, "), ("torchrun", "launcher srun torchrun, ")])
def test_the_batch_script_trains_on_two_nodes(slurm, variables, expected_weights, tmp_path, chosen, expected):
    output = tmp_path / "job.out"
    done = slurm.run(
        *("sbatch", "--wait", "--ntasks-per-node=1", f"--output={output}", SCRIPT, *DIGITS),
        environment={**variables, **({"LAUNCHER": chosen} if chosen else {})},
    )
    assert done.returncode == 0, done.stdout + output.read_text()
    assert f"{expected}world size 2" in output.read_text()
    assert weights(output.read_text()) == expected_weights


@pytest.mark.parametrize("in_place_restarts", ["0", "3"])
def test_a_job_that_nears_its_time_limit_saves_and_is_queued_again(slurm, variables, tmp_path, in_place_restarts):
    """Slurm sends the signal to all processes: with restarts in place also to those that are no ranks."""
    output, folder = tmp_path / "job.out", tmp_path / "checkpoints"
    long = ("--set", "recipe=digits", "-e", "1000")
    submitted = slurm.run(
        *("sbatch", "--parsable", "--ntasks-per-node=1", f"--output={output}", SCRIPT, *long),
        environment={
            **variables,
            contract.DDPJOB_CHECKPOINT_DIR: str(folder),
            contract.DDPJOB_IN_PLACE_RESTARTS: in_place_restarts,
        },
    )
    job = submitted.stdout.strip()
    try:
        wait_for("a first loss", lambda: output.exists() and " loss " in output.read_text())
        slurm.run("scancel", "--signal=TERM", job)  # what --signal=TERM@120 does: to the steps, not to the script
        wait_for("the job to be queued again", lambda: "Restarts=1" in slurm.run("scontrol", "show", "job", job).stdout)
        assert "stopped on request" in output.read_text()
        assert list(folder.glob("*")), "a checkpoint is there for the next start"
    finally:
        slurm.run("scancel", job)
