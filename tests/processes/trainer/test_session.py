"""Scripts with a loop of their own: killed, stopped, hung and failing, with a session around the loop."""

import random
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ddpjob_ranks import contract
from support import REPOSITORY, forked_ranks
from support.programs import PROGRAMS
from support.saved_states import assert_same, newest_state
from support.training_runs import finished, job

KILLED = str(PROGRAMS / "killed_script.py")
EXAMPLE = str(REPOSITORY / "trainer/examples/minimal_session.py")
DIGITS = str(REPOSITORY / "trainer/examples/digits_session.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", KILLED, EXAMPLE)
SEED = 20261126


def run_example(
    folder: Path, script: str = EXAMPLE, *arguments: str, attempt: int = 1, **kill: str
) -> list[int | None]:
    """Two ranks, of which one may be killed at a step."""
    command, environ = ["support.programs.killed_script", script, *arguments], job(folder, attempt=attempt) | kill
    with forked_ranks.started(folder, ranks=2, environ=environ, command=command) as started:
        return started.wait()


@pytest.mark.parametrize("num_kills", [2, pytest.param(9, marks=pytest.mark.nightly)])
def test_the_example_killed_at_random_places_ends_with_the_same_bits(num_kills, tmp_path):
    """Weights, and the generators of both ranks. torchrun starts every third attempt."""
    assert run_example(tmp_path / "whole") == [0, 0]
    assert "2 ranks found y = 3.00x + 1.00" in (tmp_path / "whole/rank-0.log").read_text()
    places = random.Random(SEED)  # noqa: S311 - of a test
    for attempt in range(1, num_kills + 1):
        # The first time after the checkpoint of step 40 has begun, so that the one of step 20 is complete.
        rank, step = places.randrange(2), places.randrange(5, 38) if attempt > 1 else 45
        kill = {"KILLED_RANK": str(rank), "KILLED_STEP": str(step)}
        if attempt % 3 == 1:
            environ = job(tmp_path, attempt=attempt) | kill
            finished(tmp_path, ranks=0, command=TORCHRUN, environ=environ, expected=1)
        else:
            assert run_example(tmp_path, attempt=attempt, **kill)[rank] == -signal.SIGKILL
    assert run_example(tmp_path, attempt=num_kills + 1) == [0, 0]
    assert re.search(r"resumed from step (?!0 )\d+ ", (tmp_path / "rank-0.log").read_text())
    seen = EventAccumulator(str(tmp_path / "checkpoints/tensorboard"))
    seen.Reload()
    steps = [event.step for event in seen.Scalars("loss")]
    assert steps == sorted(set(steps)), "TensorBoard shows each step once"
    assert steps[-1] == 200
    assert_same(seeded(newest_state(tmp_path)), seeded(newest_state(tmp_path / "whole")))


def seeded(state: dict[str, Any]) -> dict[str, Any]:
    """Without the generators that the examples do not seed."""
    return state | {"random": [generators["torch"] for generators in state["random"]]}


def test_a_script_with_a_data_loader_and_epochs_resumes_within_an_epoch(tmp_path):
    assert run_example(tmp_path / "whole", DIGITS, "--epochs=2") == [0, 0]
    killed = run_example(tmp_path, DIGITS, "--epochs=2", KILLED_RANK="1", KILLED_STEP="46")
    assert killed == [contract.EXIT_PEER_LOST, -signal.SIGKILL]
    assert run_example(tmp_path, DIGITS, "--epochs=2", attempt=2) == [0, 0]
    assert re.search(r"resumed from step (20|40) ", (tmp_path / "rank-0.log").read_text())
    assert_same(seeded(newest_state(tmp_path)), seeded(newest_state(tmp_path / "whole")))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert run(folder) == 3 * [0]
    return newest_state(folder)


def run(folder: Path, *, attempt: int = 1, **variables: str) -> list[int | None]:
    environ = job(folder, attempt=attempt) | variables
    with forked_ranks.started(folder, ranks=3, environ=environ, command=["support.programs.session_script"]) as started:
        return started.wait()


def message(folder: Path, rank: int) -> str:
    return (folder / f"termination-{rank}").read_text()


def test_one_ranks_sigterm_stops_all_after_the_same_step_and_nothing_is_lost(uninterrupted, tmp_path):
    """With BatchNorm, dropout, AdamW, a schedule and an average, and checkpoints by time at any step."""
    assert run(tmp_path, FAULT="stop", FAULT_STEP="20") == 3 * [contract.EXIT_CHECKPOINTED]
    stopped_at = newest_state(tmp_path)["step"]
    assert 20 < stopped_at < 60
    assert message(tmp_path, 0) == f"{contract.TERMINATION_CHECKPOINT_PREFIX}{stopped_at}"
    assert (message(tmp_path, 1), message(tmp_path, 2)) == ("", "")
    assert run(tmp_path, attempt=2) == 3 * [0]
    assert "after 60 steps" in (tmp_path / "rank-0.log").read_text()
    assert_same(newest_state(tmp_path), uninterrupted)


@pytest.mark.parametrize(
    ("fault", "code", "text"),
    [
        ("raise", 1, "LookupError: the disk of sample 7 is on fire"),
        ("exit 9", 9, "SystemExit: 9"),
        (
            "exit 0",
            1,
            "RuntimeError: sys.exit(0) within the loop after step 6 of 60: other ranks cannot know that this one ends; to end",
        ),
        ("break", 1, "RuntimeError: rank 2 left the loop after step 6 of 60, but rank "),
        (
            "exit 0 before the loop",
            1,
            "RuntimeError: rank 2 left the `with` block of its session before the loop, but rank ",
        ),
    ],
)
def test_an_exception_of_one_rank_is_its_termination_message(tmp_path, fault, code, text):
    assert run(tmp_path, FAULT=fault, FAULT_STEP="5") == [contract.EXIT_PEER_LOST, contract.EXIT_PEER_LOST, code]
    assert message(tmp_path, 2).startswith("rank 2\nTraceback")
    assert text in message(tmp_path, 2)
    assert message(tmp_path, 0).startswith(f"rank 0 lost a peer\nrank 2 ended: {text}")


def test_a_rank_that_hangs_is_named(tmp_path):
    assert run(tmp_path, FAULT="hang", FAULT_STEP="5") == 3 * [contract.EXIT_HUNG]
    assert message(tmp_path, 0).startswith("rank 0\nrank 2 (host ")
    assert " is late: in step after 5 steps" in message(tmp_path, 0)
