"""A training that was killed and resumed ends with the very bits of one that was not."""

import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest

from ddpjob_ranks import contract
from support import forked_ranks
from support.forked_ranks import ForkedRun, finished
from support.processes import DEADLINE_SECONDS
from support.programs import gated_rank
from support.progress_fields import PROGRESS_FIELDS
from support.training_runs import job, ranks_by_hand, started, with_recipe

KEYS = ("epochs=4", "globalBatchSize=100", "checkpointEverySteps=4", "logEverySteps=1")  # 15 steps an epoch
GATED = (sys.executable, "-m", "ddpjob.launch", gated_rank.FILE)


@pytest.fixture(scope="module")
def folder_of_a_finished_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uninterrupted")


@pytest.fixture(scope="module")
def uninterrupted(folder_of_a_finished_job: Path) -> ForkedRun:
    # 3 ranks: two fp32 numbers have one sum, three have several, so that bits show in which order ranks were added.
    return finished(folder_of_a_finished_job, *KEYS, ranks=3, environ=job(folder_of_a_finished_job))


def test_a_training_with_a_killed_rank_ends_with_the_same_bits(uninterrupted, tmp_path):
    gate = {"GATES": "33", "OPENED": str(tmp_path)}
    with started(tmp_path, *KEYS, ranks=3, command=GATED, environ=job(tmp_path) | gate) as run:
        run.wait_for("gate at step 33")
        os.kill(run.rank_pids()[0], signal.SIGKILL)
        assert run.wait() == 128 + signal.SIGKILL
        assert run.message == "rank 0\nkilled by SIGKILL"
    resumed = finished(tmp_path / "resumed", *KEYS, ranks=3, environ=job(tmp_path, attempt=2))
    first = min(resumed.losses)
    assert first > 4, "it did not start from the beginning"
    assert resumed.losses == {step: loss for step, loss in uninterrupted.losses.items() if step >= first}
    assert resumed.weights == uninterrupted.weights


def test_who_may_continue_the_checkpoints_of_a_finished_training(uninterrupted, folder_of_a_finished_job, tmp_path):
    """A job of the same name, a late rank of an older attempt, and another training."""
    shutil.copytree(folder_of_a_finished_job / "checkpoints", tmp_path / "checkpoints")

    claim = (tmp_path / "checkpoints/claim.json").read_bytes()
    # Applied again, the job evaluates and ends, and does not claim the folder.
    again = finished(tmp_path / "again", *KEYS, ranks=1, environ=job(tmp_path, uid="u2"))
    assert again.losses == {}
    assert (again.weights, again.accuracy) == (uninterrupted.weights, uninterrupted.accuracy)
    assert (tmp_path / "checkpoints/claim.json").read_bytes() == claim

    # A cut newest checkpoint is replaced by the one before it.
    newest = max((tmp_path / "checkpoints").glob("*.pt"))
    newest.write_bytes(newest.read_bytes()[:-100])
    torn = finished(tmp_path / "torn", *KEYS, ranks=3, environ=job(tmp_path, uid="u2", attempt=2))
    assert f"{newest.with_suffix('.json')} is damaged" in torn.text()
    assert 0 < len(torn.losses) < 60
    assert torn.weights == uninterrupted.weights

    # A late rank of an older attempt is refused.
    with forked_ranks.started(tmp_path / "late", *KEYS, ranks=1, environ=job(tmp_path, uid="u2")) as late:
        assert late.wait() == [contract.EXIT_FENCED]
    assert "claimed by attempt 2 of job uid u2" in late.message()

    # Another training is refused, and does not claim the folder.
    claim = (tmp_path / "checkpoints/claim.json").read_bytes()
    with forked_ranks.started(tmp_path / "other", *KEYS, "seed=5", ranks=1, environ=job(tmp_path, uid="u3")) as other:
        assert other.wait() == [contract.EXIT_BAD_CONFIG]
    assert "seed was 0 when it was saved and is 5 now" in other.message()
    assert (tmp_path / "checkpoints/claim.json").read_bytes() == claim


def test_sigterm_without_a_checkpoint_folder_ends_the_training(tmp_path):
    gate, command = {"GATES": "5", "OPENED": str(tmp_path)}, ["support.programs.gated_rank", *with_recipe(*KEYS)]
    with forked_ranks.started(tmp_path, ranks=1, environ=gate, command=command) as run:
        run.wait_for("no checkpoints: neither DDPJOB_CHECKPOINT_DIR nor DDPJOB_CHECKPOINT_URI is set")
        run.wait_for("gate at step 5")
        run.processes[0].terminate()
        gated_rank.open_gate(tmp_path, 5)
        assert run.wait() == [contract.EXIT_TERMINATED]
    assert run.message() == ""


def test_the_progress_lines_of_a_run(uninterrupted):
    lines = [line for line in uninterrupted.text().splitlines() if line.startswith(contract.PROGRESS_PREFIX)]
    progress = [json.loads(line.removeprefix(contract.PROGRESS_PREFIX)) for line in lines]
    assert (progress[0]["step"], progress[0]["phase"]) == (0, contract.PHASE_START)
    assert (progress[-1]["step"], progress[-1]["phase"]) == (60, contract.PHASE_DONE)
    assert all(fields.keys() <= PROGRESS_FIELDS for fields in progress)
    assert all(fields["totalSteps"] == 60 for fields in progress)
    assert [fields["step"] for fields in progress] == sorted(fields["step"] for fields in progress)


def test_sigterm_while_waiting_for_the_others_ends_at_once(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent_master:
        rank_1 = {**ranks_by_hand(2)[1], contract.MASTER_PORT: str(silent_master.getsockname()[1])}
        with started(tmp_path, *KEYS, ranks=0, environ=rank_1) as run:
            silent_master.settimeout(DEADLINE_SECONDS)
            silent_master.accept()
            run.process.send_signal(signal.SIGTERM)
            assert run.wait() == -signal.SIGTERM
