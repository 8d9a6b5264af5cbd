"""Which rank a process is, under each launcher."""

from typing import Any

import pytest

from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.launch.identity import attempt, first_slurm_host, in_place_restarts, resolve
from support.workers import worker


def variables(text: str) -> dict[str, str]:
    """The environment that `A=1 B=2` stands for."""
    return dict(variable.split("=") for variable in text.split())


SERVICE = "job-master.default.svc"
OPERATOR = variables(
    f"MASTER_ADDR={SERVICE} MASTER_PORT=29500 WORLD_SIZE=8 RANK=4 NODE_RANK=1 NNODES=2 NPROC_PER_NODE=4"
)
SLURM = variables(
    "SLURM_LOCALID=1 SLURM_PROCID=5 SLURM_NTASKS=7 SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=2(x2),3"
    " SLURM_STEP_NODELIST=gpu[07-09] SLURM_JOB_ID=30007 SLURM_STEP_ID=0"
)
#: A batch script has these of Slurm's variables, as Slurm 22.05 sets them; srun adds the step's.
BATCH_SCRIPT = variables(
    "SLURM_JOB_ID=3 SLURM_JOB_NODELIST=gpu[1-2] SLURM_LOCALID=0 SLURM_NNODES=2 SLURM_NODEID=0 SLURM_NTASKS=4"
    " SLURM_PROCID=0 SLURM_TASKS_PER_NODE=2(x2)"
)
LAUNCHED_BY_SRUN: dict[str, Any] = {
    "local_rank": 1,
    "local_world_size": 3,
    "master_addr": "gpu07",
    "master_port": 20007,
}
OF_FOUR: dict[str, Any] = {"world_size": 8, "local_rank": 1, "local_world_size": 4, "master_addr": SERVICE}
ONE_IN_A_POD = variables("NPROC_PER_NODE=1 WORLD_SIZE=2 RANK=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1")
UNDER_TORCHRUN = variables("RANK=5 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 TORCHELASTIC_RUN_ID=none")
TORCHRUN_STEP = SLURM | variables("SLURM_NTASKS=3 SLURM_STEP_TASKS_PER_NODE=1(x3) SLURM_LOCALID=0")
ONE_TASK = variables("SLURM_NTASKS=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_PROCID=0 SLURM_NODEID=0 SLURM_LOCALID=0")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, worker(launcher="alone")),
        ({**BATCH_SCRIPT, "SLURM_NTASKS": "1"}, worker(launcher="alone")),
        ({**OPERATOR, **ONE_IN_A_POD}, worker(rank=1, world_size=2, master_addr=SERVICE)),
        ({**OPERATOR, **UNDER_TORCHRUN}, worker(launcher="torchrun", rank=5, **OF_FOUR)),
        (SLURM, worker(launcher="srun", rank=5, world_size=7, **LAUNCHED_BY_SRUN)),
        ({**TORCHRUN_STEP, **OPERATOR, **UNDER_TORCHRUN}, worker(launcher="srun torchrun", rank=5, **OF_FOUR)),
    ],
    ids=["no launcher", "a Slurm job of one task", "one process", "torchrun in a pod", "srun", "torchrun by srun"],
)
def test_each_launcher_gives_a_process_its_rank(environ, expected):
    assert resolve(environ) == expected


@pytest.mark.parametrize(
    ("environ", "ranks", "world_size", "master"),
    [
        (OPERATOR, [4, 5, 6, 7], 8, SERVICE),
        ({"NPROC_PER_NODE": "2"}, [0, 1], 2, "127.0.0.1"),
        ({**BATCH_SCRIPT, "NPROC_PER_NODE": "2"}, [0, 1], 2, "127.0.0.1"),
        ({**SLURM, **ONE_TASK, "NPROC_PER_NODE": "2"}, [0, 1], 2, "127.0.0.1"),
    ],
    ids=["a pod of several processes", "by hand", "in a batch script", "in a step of one task"],
)
def test_the_own_launcher_starts_the_ranks_of_its_node(environ, ranks, world_size, master):
    workers = resolve(environ).workers
    assert [(w.rank, w.local_rank, w.local_world_size) for w in workers] == [
        (rank, local_rank, len(ranks)) for local_rank, rank in enumerate(ranks)
    ]
    assert {(w.world_size, w.master_addr) for w in workers} == {(world_size, master)}
    for started in workers:
        found = resolve({**environ, **started.environment()})
        assert found.environment() == started.environment()


def test_one_process_in_a_step_of_one_task_is_that_task():
    step = {**SLURM, **ONE_TASK}
    assert resolve({**step, "NPROC_PER_NODE": "1"}) == resolve(step)


@pytest.mark.parametrize(
    ("changes", "master"),
    [
        ({}, "gpu07"),
        ({"SLURM_STEP_NODELIST": "", "SLURM_JOB_NODELIST": "gpu[03,05]"}, "gpu03"),
        ({"SLURM_STEP_NODELIST": "", "SLURM_LAUNCH_NODE_IPADDR": "10.1.1.1"}, "10.1.1.1"),
        ({"SLURM_STEP_NODELIST": "", "SLURM_SRUN_COMM_HOST": "10.1.1.2"}, "10.1.1.2"),
        # Called on a login node, srun reports that node's address: rank 0 runs elsewhere.
        ({"SLURM_LAUNCH_NODE_IPADDR": "10.1.1.1", "SLURM_SRUN_COMM_HOST": "10.1.1.1"}, "gpu07"),
        ({"MASTER_ADDR": "chosen"}, "chosen"),
    ],
)
def test_the_master_of_a_slurm_step(changes, master):
    assert resolve({**SLURM, **changes}).master_addr == master


def test_the_port_of_a_slurm_step_follows_from_job_and_step():
    def port(**changes):
        return resolve({**SLURM, **changes}).master_port

    ports = [port(), port(SLURM_JOB_ID="30008"), port(SLURM_STEP_ID="1"), port(SLURM_JOB_ID="40006")]
    assert len(set(ports)) == 4
    assert all(20_000 <= found < 30_000 for found in ports)
    assert port(SLURM_PROCID="0", SLURM_NODEID="0", SLURM_LOCALID="0") == port(), "all tasks find the same"
    assert port(MASTER_PORT="1234") == 1234


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("gpu07", "gpu07"),
        ("gpu07,gpu08", "gpu07"),
        ("gpu[07-09,12],login", "gpu07"),
        ("rack1-[3,5]-ib", "rack1-3-ib"),
        ("a,b[1-2]", "a"),
        ("rack[2-3]-gpu[08-11]-ib,x", "rack2-gpu08-ib"),
        ("", ""),
    ],
)
def test_first_host_of_a_slurm_list(nodelist, first):
    assert first_slurm_host(nodelist) == first


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "RANK is not set"),
        ({"WORLD_SIZE": "two", "RANK": "0", "MASTER_ADDR": "a"}, "WORLD_SIZE is 'two'"),
        ({"WORLD_SIZE": "2", "RANK": "-1", "MASTER_ADDR": "a"}, "RANK is '-1'"),
        ({"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "a"}, "rank is 2 but the world size is 2"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_ADDR is not set"),
        ({"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "1", "MASTER_ADDR": "a"}, "local rank is 1"),
        ({"NPROC_PER_NODE": "x"}, "NPROC_PER_NODE is 'x'"),
        ({"NPROC_PER_NODE": "2", "WORLD_SIZE": "4", "RANK": "0"}, "MASTER_ADDR is not set"),
        ({**OPERATOR, "WORLD_SIZE": "6"}, "rank is 6 but the world size is 6"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "70000"}, "MASTER_PORT is 70000"),
        ({"MASTER_ADDR": "a"}, "neither RANK nor WORLD_SIZE"),
        ({**SLURM, "SLURM_NODEID": "3"}, "SLURM_NODEID is 3"),
        ({**SLURM, "SLURM_NTASKS": "8"}, "SLURM_NTASKS is 8, but the nodes have .* tasks, 7 in total"),
        ({**SLURM, "SLURM_GPUS_ON_NODE": "2"}, "3 tasks on 2 GPUs.*--ntasks-per-node=2 or --gres=gpu:3"),
        ({**SLURM, "NPROC_PER_NODE": "4"}, "NPROC_PER_NODE is 4, but srun starts 7 tasks.*unset NPROC_PER_NODE"),
        (
            {**SLURM, "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "1"},
            "3 torchrun processes on this node.*--ntasks-per-node=1",
        ),
        (
            {**OPERATOR, "LOCAL_RANK": "0", "TORCHELASTIC_MAX_RESTARTS": "3", "GROUP_WORLD_SIZE": "2"},
            "--max-restarts is 3 on 2 nodes",
        ),
        (BATCH_SCRIPT, "has 4 tasks, but srun did not start this process"),
        ({"SLURM_JOB_ID": "2", "SLURM_NTASKS": "2"}, "has 2 tasks, but srun did not"),
        ({**SLURM, "SLURM_STEP_NODELIST": ""}, "MASTER_ADDR is not set"),
    ],
)
def test_a_contradiction_is_refused_and_named(environ, message):
    with pytest.raises(ConfigError, match=message):
        resolve(environ)


@pytest.mark.parametrize(
    ("environ", "number"),
    [({}, 1), ({"DDPJOB_ATTEMPT": "3"}, 3), ({"SLURM_RESTART_COUNT": "2"}, 3), ({"DDPJOB_ATTEMPT": ""}, 1)],
)
def test_attempts_are_counted_by_the_operator_or_by_slurm(environ, number):
    assert attempt(environ) == number


@pytest.mark.parametrize("name", ["DDPJOB_ATTEMPT", "SLURM_RESTART_COUNT"])
def test_an_attempt_that_is_no_number_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name} is 'abc'; expected an integer"):
        resolve({name: "abc"})


@pytest.mark.parametrize(
    ("launched_by", "expected"), [({}, 3), (SLURM, 3), (TORCHRUN_STEP | {"TORCHELASTIC_RUN_ID": "1"}, 0)]
)
def test_only_our_own_launcher_starts_ranks_again(launched_by, expected):
    """Under torchrun a store of its own would need the port at which the agent serves one already."""
    assert in_place_restarts({"DDPJOB_IN_PLACE_RESTARTS": "3", **launched_by}) == expected
