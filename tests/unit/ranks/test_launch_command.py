"""`python -m ddpjob.launch`: which ranks its options and the environment ask for."""

import pytest

from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.launch import command, identity
from ddpjob_ranks.launch.identity import Node, Worker

POD = {"MASTER_ADDR": "job-master", "WORLD_SIZE": "4", "RANK": "2"}
POD |= {"NODE_RANK": "1", "NNODES": "2", "NPROC_PER_NODE": "2"}
SINGLE = {"MASTER_ADDR": "job-master", "WORLD_SIZE": "2", "RANK": "1", "NPROC_PER_NODE": "1", "LOCAL_RANK": "0"}
SRUN = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}


def ranks(*options: str, **environ: str) -> list[int]:
    """The global ranks that the command starts, of how many."""
    given = command.command_line().parse_args([*options, "train.py"])
    place = identity.resolve(command.environment(given, {"CUDA_VISIBLE_DEVICES": "", **environ}))
    workers: tuple[Worker, ...] = place.workers if isinstance(place, Node) else (place,)
    return [*(worker.rank for worker in workers), workers[0].world_size]


@pytest.mark.parametrize(
    ("options", "environ", "expected"),
    [
        ([], {}, [0, 1]),
        ([], {"CUDA_VISIBLE_DEVICES": "0,1,2"}, [0, 1, 2, 3]),
        (["--nproc-per-node", "auto"], {"CUDA_VISIBLE_DEVICES": "0,1"}, [0, 1, 2]),
        (["--nproc-per-node", "2"], {"CUDA_VISIBLE_DEVICES": "0,1,2"}, [0, 1, 2]),
        ([], POD, [2, 3, 4]),
        ([], SINGLE, [1, 2]),
        ([], SRUN | {"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NODELIST": "a,b"}, [3, 4]),
        (["--nproc-per-node", "2", "--nnodes", "3", "--node-rank", "1", "--master-addr", "a"], {}, [2, 3, 6]),
        (["--nproc-per-node", "1", "--nnodes", "2", "--node-rank", "1", "--master-addr", "a"], {}, [1, 2]),
    ],
)
def test_ranks_of_a_node(options, environ, expected):
    assert ranks(*options, **environ) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nproc-per-node", "0"], "--nproc-per-node is '0'; expected auto or a number of 1 or more"),
        (["--nnodes", "0"], "--nnodes is 0; expected a number of 1 or more"),
        (
            ["--nnodes", "2", "--node-rank", "2", "--master-addr", "a"],
            "--node-rank is 2; expected a number from 0 to 1",
        ),
        (["--nnodes", "2", "--node-rank", "1"], "MASTER_ADDR is not set"),
        (["--master-addr", "a"], "MASTER_ADDR is a, but neither RANK nor WORLD_SIZE is set"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        ranks(*options)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"LOCAL_RANK": "0"}, "--nnodes is 2, but LOCAL_RANK is 0, .*; unset LOCAL_RANK, or give --nproc-per-node"),
        ({"NPROC_PER_NODE": "two"}, "NPROC_PER_NODE is 'two'; expected an integer"),
    ],
)
def test_an_environment_in_which_the_ranks_of_a_node_are_unknown_is_refused(environ, message):
    with pytest.raises(ConfigError, match=message):
        ranks("--nnodes", "2", "--master-addr", "a", **environ)


def test_gpus_are_counted_by_their_device_files(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert command.num_gpus({}, tmp_path) == 2
    assert command.num_gpus({"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path) == 0
