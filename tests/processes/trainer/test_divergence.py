"""Numbers that are not finite end a training, and never take the place of what was saved before."""

from pathlib import Path

import torch

from ddpjob_ranks import contract
from ddpjob_session.state import from_bytes
from support.forked_ranks import finished, started


def saved(folder: Path) -> dict[str, bool]:
    """Each checkpoint, and whether all its weights are finite."""
    states = {path.name: from_bytes(path.read_bytes()) for path in (folder / "checkpoints").glob("*.pt")}
    return {name: all(bool(w.isfinite().all()) for w in state["model"].values()) for name, state in states.items()}


def overflow_at_step_50() -> None:
    """In each rank: one weight becomes infinite. By a learning rate alone the step would depend on the processor."""
    from ddpjob_trainer import loop

    take_step = loop.Training.take_step

    def overflowing(training, step, timer):
        loss = take_step(training, step, timer)
        if step + 1 == 50:
            next(training.state.model.parameters()).data.view(-1)[0] = torch.inf
        return loss

    loop.Training.take_step = overflowing  # type: ignore[method-assign]


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    environ = {contract.DDPJOB_CHECKPOINT_DIR: str(tmp_path / "checkpoints")}
    finished(tmp_path / "good", "epochs=2", ranks=2, environ=environ)
    before = saved(tmp_path)
    assert len(before) == 2
    keys = ("epochs=4", "learningRate=100", "logEverySteps=1000")
    with started(tmp_path / "bad", *keys, ranks=2, environ=environ, first=overflow_at_step_50) as run:
        assert run.wait() == 2 * [contract.EXIT_PROGRAM_ERROR]
    assert "weights are not finite after step 69 (learningRate 100); this state is not saved" in run.message()
    assert "set a lower learningRate" in run.message()
    assert saved(tmp_path) == before
    assert all(before.values())


def test_a_loss_that_is_not_finite_ends_the_training_at_its_log_line(tmp_path):
    # From 2.3 to 5e4, 4e13 and NaN in 4 steps: too few for a rounding difference between processors to matter.
    keys = ("epochs=6", "globalBatchSize=100", "learningRate=100", "warmupEpochs=0", "logEverySteps=1")
    with started(tmp_path, *keys, ranks=2) as run:
        assert run.wait() == 2 * [contract.EXIT_PROGRAM_ERROR]
    assert "training has diverged: the loss is " in run.message()
    assert torch.tensor(list(run.losses.values())).isfinite().all()
