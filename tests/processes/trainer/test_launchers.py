"""The launchers that need no root; Slurm's are in tests/slurm."""

import sys
from contextlib import ExitStack

import pytest

from ddpjob_operator.core.render.pods import restart_by_torchrun
from ddpjob_ranks import contract
from support import REPOSITORY, forked_ranks
from support.builders import job
from support.programs import PROGRAMS
from support.training_runs import finished, started
from testbed import free_ports

KEYS = ("epochs=1", "globalBatchSize=256")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
TRAINER = (sys.executable, "-m", "ddpjob_trainer")
FAULTY_RANK = str(PROGRAMS / "faulty_rank.py")


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What two ranks of the trainer's own launcher end with."""
    return finished(tmp_path_factory.mktemp("own"), *KEYS, ranks=2).weights


def test_pods_of_the_operator(tmp_path, expected):
    run = forked_ranks.finished(tmp_path, *KEYS, ranks=2)
    assert "launcher environment, world size 2" in run.text()
    assert "loss" not in run.text(1), "rank 0 alone reports"
    assert run.weights == expected


def test_torchruns_of_two_pods_restart_their_ranks_together(tmp_path, expected):
    """With what the operator sets for restart.inPlace; rank 0 stays in the first pod, whose log the operator reads."""
    of, port = job(nodes=2, command=["torchrun", "x.py"], restart={"inPlace": True}), str(*free_ports(1))
    own = {contract.PET_NNODES: "2", contract.PET_NPROC_PER_NODE: "1", contract.PET_RDZV_ENDPOINT: f"127.0.0.1:{port}"}
    fault = {"FAULT": "raise", "FAULTY_RANK": "1", "FAULT_STEP": "3"}
    saved = {contract.DDPJOB_CHECKPOINT_DIR: str(tmp_path / "checkpoints")}
    command, keys = (sys.executable, "-m", "torch.distributed.run", FAULTY_RANK), (*KEYS, "checkpointEverySteps=2")
    with ExitStack() as pods:
        runs = []
        for rank in range(2):
            environ = restart_by_torchrun(of, of.spec, rank) | own | fault | saved
            if rank == 0:
                environ[contract.PET_LOCAL_ADDR] = "127.0.0.1"
            pod = started(tmp_path / str(rank), *keys, ranks=0, command=command, environ=environ)
            runs.append(pods.enter_context(pod))
        assert [run.wait() for run in runs] == [0, 0], runs[0].text + runs[1].text
    assert "launcher torchrun, world size 2" in runs[0].text
    assert "the disk of sample 7 is on fire" in runs[1].text
    assert "resumed from step 2 in " in runs[0].text
    assert not runs[1].losses
    assert runs[0].weights == expected


def test_tcp_initialisation(tmp_path, expected):
    rendezvous = ("--init-method", f"tcp://127.0.0.1:{free_ports(1)[0]}", "--world-size", "2")
    rank_0, rank_1 = (
        started(tmp_path, *KEYS, ranks=0, command=(*TRAINER, *rendezvous, "--rank", rank), is_forked=True)
        for rank in "01"
    )
    with rank_0 as run, rank_1 as other:
        assert (run.wait(), other.wait()) == (0, 0), run.text + other.text
    assert "launcher environment, world size 2" in run.text
    assert run.weights == expected


def test_tasks_of_two_nodes_with_the_variables_of_srun(tmp_path, expected):
    """As Slurm 22.05 sets them for `srun --nodes=2 --ntasks-per-node=1`."""
    step = {
        "SLURM_JOB_ID": str(*free_ports(1)),
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_NNODES": "2",
        "SLURM_STEP_NODELIST": "localhost,node-[2-3]",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_LOCALID": "0",
    }
    tasks = [{**step, "SLURM_PROCID": str(node), "SLURM_NODEID": str(node)} for node in range(2)]
    run = forked_ranks.finished(tmp_path, *KEYS, ranks=tasks)
    assert "launcher srun, world size 2" in run.text()
    assert run.weights == expected


def test_one_process_trains_alike_however_it_is_started(tmp_path):
    alone = finished(tmp_path, *KEYS, ranks=0, is_forked=True)
    assert "launcher alone, world size 1" in alone.text
    by_torchrun = finished(tmp_path, *KEYS, ranks=0, command=(*TORCHRUN, "--nproc-per-node=1", "-m", "ddpjob_trainer"))
    assert "launcher torchrun, world size 1" in by_torchrun.text
    as_pod = forked_ranks.finished(tmp_path, *KEYS)
    assert "launcher environment, world size 1" in as_pod.text()
    assert alone.weights == by_torchrun.weights == as_pod.weights


def test_the_minimal_script_runs_without_a_launcher(tmp_path):
    command = (sys.executable, str(REPOSITORY / "trainer/examples/minimal_ddp.py"))
    run = finished(tmp_path, ranks=0, command=command, is_forked=True)
    assert "1 ranks found y = 3.00x + 1.00" in run.text


def test_a_script_for_several_ranks_names_the_launcher(tmp_path):
    (script := tmp_path / "script.py").write_text("from ddpjob.session import Session\nwith Session(): pass")
    command, expected = (sys.executable, str(script)), contract.EXIT_BAD_CONFIG
    run = finished(tmp_path, ranks=2, command=command, is_forked=True, expected=expected)
    assert "start the script with python -m ddpjob.launch" in run.text
