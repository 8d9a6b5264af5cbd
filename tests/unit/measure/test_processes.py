from ddpjob_measure import processes
from ddpjob_ranks.launch.identity import Node, Worker, resolve


def test_a_run_within_a_job_of_slurm_is_no_part_of_it(monkeypatch):
    of_the_job = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "4294967290",  # salloc's shell
        "SLURM_NTASKS": "4",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "MASTER_ADDR": "gpu07",
        "LOCAL_RANK": "0",
    }
    for name, value in of_the_job.items():
        monkeypatch.setenv(name, value)

    alone, two = (resolve(processes.variables_of_a_run(world_size)) for world_size in (1, 2))

    assert isinstance(alone, Worker)
    assert (alone.launcher, alone.world_size) == ("alone", 1)
    assert isinstance(two, Node)
    assert [(worker.rank, worker.master_addr) for worker in two.workers] == [(0, "127.0.0.1"), (1, "127.0.0.1")]
