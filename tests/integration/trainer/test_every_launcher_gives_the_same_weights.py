import sys

from training_runs import finished, free_port, ranks_by_hand, started

KEYS = ("epochs=1",)


def test_two_ranks_by_operator_launcher_torchrun_and_srun(tmp_path):
    by_launcher = finished(tmp_path, *KEYS, ranks=2)

    pods = ranks_by_hand(2)
    with (
        started(tmp_path / "0", *KEYS, ranks=0, environ=pods[0]) as rank_0,
        started(tmp_path / "1", *KEYS, ranks=0, environ=pods[1]) as rank_1,
    ):
        assert (rank_0.wait(), rank_1.wait()) == (0, 0)
    assert rank_0.weights == by_launcher.weights
    assert not [line for line in rank_1.lines if "loss" in line], "rank 0 alone reports"

    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    by_torchrun = finished(tmp_path, *KEYS, ranks=0, command=(*torchrun, "-m", "ddpjob_trainer"))
    assert "launcher torchrun, world size 2" in by_torchrun.text
    assert by_torchrun.weights == by_launcher.weights

    tasks = [
        {
            "SLURM_PROCID": str(task),
            "SLURM_LOCALID": str(task),
            "SLURM_NTASKS": "2",
            "SLURM_NODEID": "0",
            "SLURM_STEP_TASKS_PER_NODE": "2",
            "SLURM_STEP_NODELIST": "localhost",
            "SLURM_JOB_ID": str(free_port()),
        }
        for task in range(2)
    ]
    tasks[1]["SLURM_JOB_ID"] = tasks[0]["SLURM_JOB_ID"]
    with (
        started(tmp_path / "2", *KEYS, ranks=0, environ=tasks[0]) as task_0,
        started(tmp_path / "3", *KEYS, ranks=0, environ=tasks[1]) as task_1,
    ):
        assert (task_0.wait(), task_1.wait()) == (0, 0)
    assert "launcher srun, world size 2" in task_0.text
    assert task_0.weights == by_launcher.weights
