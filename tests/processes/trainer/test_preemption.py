"""SIGTERM at random moments, each to one rank or to all: no step is lost, none is done twice.

DDPJOB_PREEMPTIONS=50 tries 50 moments; DDPJOB_PREEMPTION_SEED picks others.
"""

import os
import random
from pathlib import Path

import pytest

from ddpjob_ranks import contract
from support.forked_ranks import ForkedRun, finished, started
from support.programs.preempted_rank import POINTS, RANK_0_ONLY, arrange
from support.training_runs import job

NUM_MOMENTS = int(os.environ.get("DDPJOB_PREEMPTIONS", "6"))
#: 4: with 6 moments, signals to each rank alone and to both; set-up, the first step, evaluation and all of saving.
SEED = int(os.environ.get("DDPJOB_PREEMPTION_SEED", "4"))
RANKS = 2
#: 8 steps an epoch. A moment ends training within the epoch after the one it begins in.
KEYS = ("globalBatchSize=200", "logEverySteps=1", "checkpointEverySteps=3", f"epochs={2 * NUM_MOMENTS + 1}")


def moments() -> list[tuple[str, int, int]]:
    """Where, at which rank (RANKS: all of them, from outside), and after how many steps of the attempt."""
    chance = random.Random(SEED)  # noqa: S311 - picks moments, not secrets
    points = [*POINTS, "outside"] * (NUM_MOMENTS // len(POINTS) + 1)
    chance.shuffle(points)
    return [
        (
            point,
            RANKS if point == "outside" else 0 if point in RANK_0_ONLY else chance.randrange(RANKS),
            0 if point == "set-up" else chance.randrange(6),
        )
        for point in points[:NUM_MOMENTS]
    ]


def preempted(folder: Path, attempt: int, point: str, rank: int, after: int) -> ForkedRun:
    """One attempt up to its end."""
    opened = folder / f"opened-{attempt}"
    environ = {
        **job(folder, attempt=attempt),
        "OPENED": str(opened),
        "PREEMPTED_AT": point,
        "PREEMPTED_RANK": str(rank),
        "PREEMPTED_STEP": str(after),
    }
    with started(folder / str(attempt), *KEYS, ranks=RANKS, environ=environ, first=arrange) as run:
        run.wait_for("SIGTERM now", rank=min(rank, RANKS - 1))
        if point == "outside":
            for process in run.processes:
                process.terminate()
            opened.touch()
        codes = run.wait()
        report = f"{point}, rank {rank}, after {after} steps: {codes}\n{run.text()}"
        assert codes == RANKS * [contract.EXIT_CHECKPOINTED], report
        return run


@pytest.mark.timeout(240 + 60 * NUM_MOMENTS)
def test_a_preempted_training_resumes_where_it_stopped(tmp_path):
    losses: dict[int, float] = {}
    for attempt, (point, rank, after) in enumerate(moments(), start=1):
        run = preempted(tmp_path, attempt, point, rank, after)
        stopped_at = int(run.message().removeprefix(contract.TERMINATION_CHECKPOINT_PREFIX))
        who = "all ranks" if rank == RANKS else f"rank {rank}"
        print(f"{point} at {who}: steps {len(losses) + 1} to {stopped_at}")
        assert list(run.losses) == list(range(len(losses) + 1, stopped_at + 1)), "the last step done is the step saved"
        assert run.message(1) == "", "the step is reported by rank 0 alone"
        assert "ddpjob stacks: SIGTERM received\nthread MainThread\n" in run.text(min(rank, RANKS - 1))
        losses |= run.losses
    print(f"{NUM_MOMENTS} moments: {len(losses)} steps, each done once")
    last = finished(tmp_path / "last", *KEYS, ranks=RANKS, environ=job(tmp_path, attempt=1000))
    uninterrupted = finished(tmp_path / "uninterrupted", *KEYS, ranks=RANKS)
    assert losses | last.losses == uninterrupted.losses
    assert len(losses) + len(last.losses) == len(uninterrupted.losses), "no step was done twice"
    assert last.weights == uninterrupted.weights
