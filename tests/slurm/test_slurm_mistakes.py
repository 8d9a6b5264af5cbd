import pytest

from ddpjob_ranks import contract
from support.slurm_training import DIGITS, TRAINER

TORCHRUN = ("torchrun", "--nproc-per-node=1", "--master-port=29951", "-m", "ddpjob_trainer")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("salloc", "--ntasks=2", *TRAINER), "Slurm: the job has 2 tasks, but srun did not start this process"),
        (("srun", "--nodes=1", "--ntasks=2", "--gres=gpu:1", *TRAINER), "this node runs 2 tasks on 1 GPUs"),
        (("srun", "--nodes=1", "--ntasks=2", *TORCHRUN), "Slurm: srun starts 2 torchrun processes on this node"),
    ],
)
def test_a_mismatch_ends_at_once_with_what_to_change(slurm, variables, command, expected):
    done = slurm.run(*command, *DIGITS, environment=variables)
    assert expected in done.stdout
    # torchrun makes 1 of every exit code.
    assert done.returncode == (1 if "torchrun" in command else contract.EXIT_BAD_CONFIG)
