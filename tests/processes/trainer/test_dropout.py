"""Layers that draw random numbers: each rank draws its own, and a resumed run draws those of an uninterrupted one."""

from pathlib import Path

from ddpjob_ranks import contract
from support.forked_ranks import ForkedRun, finished

#: 1,438 samples in steps of 205, which 3 ranks share unevenly.
KEYS = (
    "recipe=support.programs.dropout_recipe:dropout",
    "epochs=2",
    "globalBatchSize=205",
    "logEverySteps=1",
    "checkpointEverySteps=3",
    "keepCheckpoints=9",
)
RANKS = 3


def masks(run: ForkedRun, rank: int) -> list[str]:
    """Of the steps; the first mask is that of the set-up's backward pass."""
    return [line for line in run.text(rank).splitlines() if line.startswith("mask ")][1:]


def job(folder: Path, attempt: int) -> dict[str, str]:
    return {contract.DDPJOB_CHECKPOINT_DIR: str(folder), contract.DDPJOB_ATTEMPT: str(attempt)}


def test_ranks_draw_different_masks_and_a_resumed_run_draws_the_same_ones(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    whole = finished(tmp_path / "whole", *KEYS, ranks=RANKS, environ=job(checkpoints, 1))
    assert len(whole.losses) == 16
    for step in range(16):
        assert len({masks(whole, rank)[step] for rank in range(RANKS)}) == RANKS
    assert len(set(masks(whole, 0))) == 16
    for path in checkpoints.glob("step-*"):
        if int(path.name.split("-")[1]) > 9:
            path.unlink()
    resumed = finished(tmp_path / "resumed", *KEYS, ranks=RANKS, environ=job(checkpoints, 2))
    assert min(resumed.losses) == 10
    assert resumed.losses == {step: loss for step, loss in whole.losses.items() if step >= 10}
    assert resumed.weights == whole.weights
    for rank in range(RANKS):
        assert masks(resumed, rank) == masks(whole, rank)[9:]
