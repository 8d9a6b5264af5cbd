"""Ranks that fail and start again within their pod: only time is lost, and the bits are those of an undisturbed run."""

import os
import re
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ddpjob_ranks import contract
from support import forked_ranks
from support.programs import PROGRAMS, gated_rank, rank_with_copies
from support.saved_states import assert_same, newest_state
from support.training_runs import finished, job, ranks_by_hand, started
from testbed import free_ports

SCRIPT = str(PROGRAMS / "session_script.py")
LAUNCHER = (sys.executable, "-m", "ddpjob.launch")
LAUNCH: dict[str, Any] = {"command": (*LAUNCHER, "--nproc-per-node=2", SCRIPT), "is_forked": True}
GATED: dict[str, Any] = {"command": (*LAUNCHER, gated_rank.FILE), "is_forked": True}
REPEATED = r"resumed from step (\d+) in memory; later steps, if there were any, are repeated"
IN_PLACE = {contract.DDPJOB_IN_PLACE_RESTARTS: "20"}
HANGS = {"FAULT": "hang,pause,hold,", "FAULT_STEP": "12"}
RESTART = "start again in place"
DIGITS = ("epochs=5", "logEverySteps=5")


def gates(folder: Path, *steps: int) -> dict[str, str]:
    return {"GATES": ",".join(map(str, steps)), "OPENED": str(folder)}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return forked_ranks.finished(tmp_path_factory.mktemp("undisturbed"), *DIGITS, ranks=2)


@pytest.mark.parametrize("places", [[{contract.NPROC_PER_NODE: "2"}], None], ids=["ranks of one pod", "two pods"])
def test_killed_ranks_cost_no_step_and_no_bit(undisturbed, tmp_path, places):
    """Both ranks in turn, without any checkpoint."""
    places = places or ranks_by_hand(2)
    environ = {contract.MASTER_PORT: str(*free_ports(1))} | IN_PLACE | gates(tmp_path, 22, 82)
    with ExitStack() as pods:
        runs = [
            pods.enter_context(started(tmp_path / str(node), *DIGITS, ranks=0, environ=environ | place, **GATED))
            for node, place in enumerate(places)
        ]
        for number, (rank, step) in enumerate(((1, 22), (0, 82)), start=1):
            runs[-1].wait_for(f"gate at step {step}")
            launcher = runs[rank % len(runs)]
            os.kill(launcher.pid_of_rank(rank), signal.SIGKILL)
            launcher.wait_for(
                rf"rank {rank} was killed by SIGKILL; all ranks {RESTART} \({number} of at most 20 times\)"
            )
        assert [run.wait() for run in runs] == [0] * len(runs), runs[0].text
    assert [run.text.count(RESTART) for run in runs] == [2] * len(runs)
    assert runs[0].text.count("in memory: no step is lost") == 2
    assert re.search(r'"inPlaceRestarts": 1, "inPlaceCause": "rank 1 was killed by SIGKILL at step \d+"', runs[0].text)
    assert (runs[0].weights, runs[0].losses) == (undisturbed.weights, undisturbed.losses)


@pytest.mark.parametrize(
    ("program", "variables", "resumed"),
    [((SCRIPT,), {}, RESTART), ((rank_with_copies.FILE, SCRIPT), {"CHECKPOINT_EVERY": "60"}, REPEATED)],
    ids=["states are kept when ranks end", "states are copied while ranks train, as on GPUs"],
)
def test_a_script_with_a_session_has_the_same_bits_after_kills_at_any_moment(program, variables, resumed, tmp_path):
    """BatchNorm, dropout, all generators of each rank, a schedule and an average of weights."""
    whole = finished(tmp_path / "whole", ranks=0, environ=job(tmp_path / "whole") | IN_PLACE, **LAUNCH)
    assert "after 60 steps" in whole.text
    kills = {"FAULT": "killed soon,killed soon,killed soon,killed soon,", "FAULT_STEP": "11", "FAULTY_RANKS": "1,0,0,1"}
    environ = job(tmp_path) | IN_PLACE | kills | variables
    command = (*LAUNCH["command"][:-1], *program)
    run = finished(tmp_path, ranks=0, command=command, environ=environ, is_forked=True)
    assert len(re.findall(resumed, run.text)) == run.text.count(RESTART) == 4, run.text
    assert_same(newest_state(tmp_path), newest_state(tmp_path / "whole"))


def test_killed_ranks_whose_state_is_copied_while_they_train_continue_from_the_newest_copy(undisturbed, tmp_path):
    """Both ranks in turn, and both at once, without any checkpoint."""
    command = (*LAUNCH["command"][:-1], rank_with_copies.FILE, gated_rank.FILE)
    environ = IN_PLACE | gates(tmp_path, 22, 62, 102)
    with started(tmp_path, *DIGITS, ranks=2, command=command, environ=environ, is_forked=True) as run:
        for ranks, step in (((1,), 22), ((0,), 62), ((0, 1), 102)):
            run.wait_for(f"gate at step {step}")
            for pid in [run.pid_of_rank(rank) for rank in ranks]:
                os.kill(pid, signal.SIGKILL)
        assert run.wait() == 0, run.text
    steps = [int(step) for step in re.findall(REPEATED, run.text)]
    assert len(steps) == run.text.count(RESTART) == 3, run.text
    assert all(before <= step <= gate for before, step, gate in zip((1, 22, 62), steps, (22, 62, 102), strict=True))
    causes = re.findall(r'"inPlaceCause": "([^"]*)"', run.text)
    assert f"rank 1 was killed by SIGKILL, continued from step {steps[0]}" in causes, "as the operator reads it"
    assert all(re.fullmatch(contract.IN_PLACE_CAUSE_PATTERN, cause) for cause in causes)
    assert (run.weights, run.losses) == (undisturbed.weights, undisturbed.losses)


@pytest.mark.parametrize(
    "num_nodes",
    [pytest.param(2, id="two pods"), pytest.param(1, id="two tasks of Slurm on a node", marks=pytest.mark.nightly)],
)
def test_ranks_that_hang_cost_no_step_and_no_bit(num_nodes, tmp_path):
    """One that waits without end, one that is stopped, and one that runs compiled code without end; each has its launcher."""
    same_sums = {"OMP_NUM_THREADS": "1"}
    with ExitStack() as pods:
        runs = [
            pods.enter_context(started(tmp_path, ranks=0, command=(*LAUNCHER, SCRIPT), environ=environ, is_forked=True))
            for variables in ranks_by_hand(2)
            for place in [{} if num_nodes == 2 else {"LOCAL_RANK": variables["RANK"], "LOCAL_WORLD_SIZE": "2"}]
            for environ in [variables | place | job(tmp_path) | IN_PLACE | same_sums | HANGS]
        ]
        assert [run.wait() for run in runs] == [0, 0], runs[0].text
    assert all(f"resumed from step {step} in memory: no step is lost" in runs[0].text for step in (12, 24, 36))
    finished(tmp_path / "whole", ranks=0, environ=job(tmp_path / "whole") | IN_PLACE | same_sums, **LAUNCH)
    assert_same(newest_state(tmp_path), newest_state(tmp_path / "whole"))


def test_a_failure_that_comes_back_ends_the_run_with_its_message(tmp_path):
    faulty = {"FAULT": "raise", "FAULT_STEP": "20"}
    run = finished(tmp_path, ranks=0, environ=faulty | IN_PLACE, expected=1, **LAUNCH)
    assert run.text.count(RESTART) == 2
    assert run.text.count("resumed from step 20 in memory: no step is lost") == 2
    assert run.message.startswith("rank 1\n")
    assert run.message.endswith("LookupError: the disk of sample 7 is on fire")


FAILS_AT_THE_END = """
from ddpjob.session import Session
with Session() as session:
    session.track()
    for _ in session.steps(3):
        pass
if session.rank == 1:
    raise LookupError("after the end")
"""


def test_a_failure_after_the_end_of_the_training_is_not_waited_with(tmp_path):
    """The ranks of the other pod have ended and start no more."""
    (script := tmp_path / "script.py").write_text(FAILS_AT_THE_END)
    command = (*LAUNCHER, str(script))
    with ExitStack() as pods:
        runs = [
            pods.enter_context(
                started(tmp_path / str(rank), ranks=0, command=command, environ=variables | IN_PLACE, is_forked=True)
            )
            for rank, variables in enumerate(ranks_by_hand(2))
        ]
        assert [run.wait() for run in runs] == [0, 1], runs[1].text
    assert RESTART not in runs[1].text


#: The request may arrive long before the ranks have started again.
PATIENT = """
import sys
from ddpjob_ranks.launch import command, launcher
launcher.STOP_SECONDS = 3600.0
sys.exit(command.main(sys.argv[1:]))
"""
STARTS_AGAIN_BEHIND_A_GATE = """
import os, pathlib, signal, time, torch
from ddpjob.session import Session
if os.environ["DDPJOB_GENERATION"] == "2":
    print("next generation", flush=True)
    while not pathlib.Path(os.environ["OPENED"]).exists():
        time.sleep(0.01)
with Session() as session:
    session.track()
    for step in session.steps(100_000):
        if step == 5 and session.rank == 1 and os.environ["DDPJOB_GENERATION"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        torch.distributed.all_reduce(torch.zeros(1))
"""


def test_pods_that_are_all_asked_to_stop_while_their_ranks_start_again_save_the_state_in_memory(tmp_path):
    """As when a job is suspended or preempted at this moment. There is no other checkpoint."""
    (script := tmp_path / "script.py").write_text(STARTS_AGAIN_BEHIND_A_GATE)
    command = (sys.executable, "-c", PATIENT, str(script))
    environ = job(tmp_path) | IN_PLACE | {"OPENED": str(gate := tmp_path / "gate")}
    with ExitStack() as pods:
        runs = [
            pods.enter_context(started(tmp_path / str(rank), ranks=0, command=command, environ=environ | variables))
            for rank, variables in enumerate(ranks_by_hand(2))
        ]
        for run in runs:
            run.wait_for("next generation")
        for run in runs:
            run.process.send_signal(signal.SIGTERM)
        gate.touch()
        assert [run.wait() for run in runs] == [contract.EXIT_CHECKPOINTED] * 2, runs[0].text
    resumed = re.search(r"resumed from step ([45]) in memory: no step is lost", runs[0].text)
    assert resumed, runs[0].text
    assert newest_state(tmp_path)["step"] >= int(resumed[1])


READS_DATA = """
import os, signal
from multiprocessing import util
import torch
from torch.utils.data import DataLoader
worker = iter(DataLoader(torch.arange(9.0), num_workers=1, multiprocessing_context="fork"))
print(next(worker).item())
util.get_temp_dir()
if os.environ["DDPJOB_GENERATION"] < "3":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_launcher_removes_the_sockets_of_data_workers(tmp_path):
    """A worker has one once its first batch has arrived; it is killed with its rank."""
    script = tmp_path / "script.py"
    script.write_text(READS_DATA)
    command = (sys.executable, "-m", "ddpjob.launch", "--nproc-per-node=1", str(script))
    with tempfile.TemporaryDirectory(prefix="ddpjob-") as temporary:  # a short path, as those of sockets have to be
        run = finished(tmp_path, ranks=0, command=command, environ=IN_PLACE | {contract.TMPDIR: temporary})
        assert run.text.count(RESTART) == 2
        assert list(Path(temporary).glob("pymp-*")) == []


@pytest.mark.parametrize(
    ("killed", "variables", "num_kills"),
    [((0, 1), {}, 1), ((1,), {contract.DDPJOB_STATE_IN_MEMORY: "0"}, 3)],  # three in a row without progress end a run
    ids=["all ranks are killed at once", "off"],
)
def test_where_no_state_is_kept_the_newest_checkpoint_is_taken(killed, variables, num_kills, tmp_path):
    steps = [20 * number for number in range(1, num_kills + 1)]
    environ = IN_PLACE | job(tmp_path) | variables | gates(tmp_path, *(step + 2 for step in steps))
    with started(tmp_path, *DIGITS, "checkpointEverySteps=10", ranks=2, environ=environ, **GATED) as run:
        for step in steps:
            run.wait_for(f"checkpoint of step {step}:")
            run.wait_for(f"gate at step {step + 2}")
            pids = [run.pid_of_rank(rank) for rank in killed]
            for pid in (run.process.pid, *pids):  # so that none of them acts between the kills
                os.kill(pid, signal.SIGSTOP)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            os.kill(run.process.pid, signal.SIGCONT)
        assert run.wait() == 0, run.text
    assert [int(step) for step in re.findall(r"resumed from step (\d+) in /", run.text)] == steps
    assert run.text.count(RESTART) == num_kills


@pytest.mark.parametrize("all_get_it", [False, True], ids=["from the kubelet", "from Slurm, to all processes"])
def test_a_request_to_stop_is_honoured_after_a_restart(all_get_it, tmp_path):
    environ = IN_PLACE | job(tmp_path) | gates(tmp_path, 22, 62)
    with started(tmp_path, *DIGITS, ranks=2, environ=environ, **GATED) as run:
        run.wait_for("gate at step 22")
        os.kill(run.pid_of_rank(1), signal.SIGKILL)
        run.wait_for("gate at step 62")
        assert "in memory: no step is lost" in run.text
        for pid in (run.process.pid, *(run.rank_pids() if all_get_it else ())):
            os.kill(pid, signal.SIGTERM)
        run.wait_for("SIGTERM received")
        gated_rank.open_gate(tmp_path, 62)
        assert run.wait() == contract.EXIT_CHECKPOINTED, run.text
    assert run.message.startswith(contract.TERMINATION_CHECKPOINT_PREFIX)
