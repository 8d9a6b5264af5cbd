import pytest

from ddpjob_trainer.config import ConfigError
from ddpjob_trainer.launch import Node, Worker, first_slurm_host, resolve

OPERATOR = {
    "MASTER_ADDR": "job-master.default.svc",
    "MASTER_PORT": "29500",
    "WORLD_SIZE": "8",
    "RANK": "4",
    "NODE_RANK": "1",
    "NNODES": "2",
    "NPROC_PER_NODE": "4",
}
SLURM = {
    "SLURM_LOCALID": "1",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "7",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),3",
    "SLURM_STEP_NODELIST": "gpu[07-09]",
    "SLURM_JOB_ID": "30007",
}


def worker(**changes):
    fields = {
        "launcher": "environment",
        "rank": 0,
        "world_size": 1,
        "local_rank": 0,
        "local_world_size": 1,
        "master_addr": "127.0.0.1",
        "master_port": 29500,
    }
    return Worker(**{**fields, **changes})


def test_alone():
    assert resolve({}) == worker(launcher="alone")


def test_one_process_per_pod_of_the_operator():
    one = {
        **OPERATOR,
        "NPROC_PER_NODE": "1",
        "WORLD_SIZE": "2",
        "RANK": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
    assert resolve(one) == worker(rank=1, world_size=2, master_addr="job-master.default.svc")


def test_a_pod_of_several_processes_starts_its_ranks_from_its_own():
    node = resolve(OPERATOR)
    assert isinstance(node, Node)
    assert [(w.rank, w.local_rank, w.local_world_size, w.world_size) for w in node.workers] == [
        (4, 0, 4, 8),
        (5, 1, 4, 8),
        (6, 2, 4, 8),
        (7, 3, 4, 8),
    ]
    assert {w.master_addr for w in node.workers} == {"job-master.default.svc"}


def test_several_processes_by_hand_on_one_machine():
    node = resolve({"NPROC_PER_NODE": "2"})
    assert isinstance(node, Node)
    assert [(w.rank, w.world_size, w.master_addr) for w in node.workers] == [(0, 2, "127.0.0.1"), (1, 2, "127.0.0.1")]


def test_what_the_launcher_hands_on_makes_the_same_worker():
    node = resolve(OPERATOR)
    assert isinstance(node, Node)
    for started in node.workers:
        found = resolve({**OPERATOR, **started.environment()})
        assert isinstance(found, Worker)
        assert found.environment() == started.environment()


def test_torchrun_in_a_pod_of_several_processes():
    torchrun = {**OPERATOR, "RANK": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}
    found = resolve(torchrun)
    assert found == worker(
        launcher="torchrun",
        rank=5,
        world_size=8,
        local_rank=1,
        local_world_size=4,
        master_addr="job-master.default.svc",
    )


def test_srun():
    assert resolve(SLURM) == worker(
        launcher="srun",
        rank=5,
        world_size=7,
        local_rank=1,
        local_world_size=3,
        master_addr="gpu07",
        master_port=20007,
    )


def test_torchrun_under_srun_is_torchrun():
    found = resolve({**SLURM, **OPERATOR, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "1"})
    assert isinstance(found, Worker)
    assert found.launcher == "torchrun"
    assert found.rank == 4


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("gpu07", "gpu07"),
        ("gpu07,gpu08", "gpu07"),
        ("gpu[07-09,12],login", "gpu07"),
        ("rack1-[3,5]-ib", "rack1-3-ib"),
        ("a,b[1-2]", "a"),
    ],
)
def test_first_host_of_a_slurm_list(nodelist, first):
    assert first_slurm_host(nodelist) == first


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "RANK is not set"),
        ({"WORLD_SIZE": "two", "RANK": "0", "MASTER_ADDR": "a"}, "WORLD_SIZE is 'two'"),
        ({"WORLD_SIZE": "2", "RANK": "-1", "MASTER_ADDR": "a"}, "RANK is '-1'"),
        ({"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "a"}, "rank is 2 but the world size is 2"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_ADDR is not set"),
        ({"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "1", "MASTER_ADDR": "a"}, "local rank is 1"),
        ({"NPROC_PER_NODE": "x"}, "NPROC_PER_NODE is 'x'"),
        ({**OPERATOR, "WORLD_SIZE": "6"}, "rank is 6 but the world size is 6"),
        ({**SLURM, "SLURM_NODEID": "3"}, "SLURM_NODEID is 3"),
        ({**SLURM, "SLURM_STEP_NODELIST": ""}, "MASTER_ADDR is not set"),
    ],
)
def test_a_contradiction_is_told(environ, told):
    with pytest.raises(ConfigError, match=told):
        resolve(environ)
