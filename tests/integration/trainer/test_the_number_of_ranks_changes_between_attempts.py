"""4, 2, 3 and 4 ranks in turn train what one set of ranks trains: same order, same global batch, each sample once."""

import os

import pytest

from ddpjob_ranks import contract
from forked_ranks import ForkedRun, finished, started

#: 1,438 samples in steps of 205, which no number of ranks divides, and one of 3, which leaves one of 4 ranks without.
KEYS = ("epochs=4", "globalBatchSize=205", "learningRate=0.02", "logEverySteps=1")
STEPS = 32
#: Where each attempt is stopped, and on how many ranks it runs: within an epoch each time.
RANKS_AND_STOPS = ((4, 6), (2, 13), (3, 22), (4, None))
#: Largest difference of any step's loss, of about 2.2, from that of one process: sums in another order. Measured on
#: x86-64: 2.4e-7, which is one bit. A higher learning rate amplifies it, with or without a change of ranks: 6e-4 at 0.1
#: after 48 steps, once a rounding has decided which of two pixels a max-pooling takes.
TOLERANCE = 2e-6


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> ForkedRun:
    return finished(tmp_path_factory.mktemp("uninterrupted"), *KEYS, ranks=1)


def stop_at_chosen_step() -> None:
    """In each rank: the agreement to stop comes at the step in STOP_AT, on all ranks."""
    from ddpjob_trainer import loop

    take_step = loop.Training.take_step

    def counted(training, step, timer):
        if step + 1 == int(os.environ["STOP_AT"]):
            training.stop._request.received = True  # as SIGTERM sets it; honoured one step later
        return take_step(training, step, timer)

    loop.Training.take_step = counted


def test_4_to_2_to_3_to_4_ranks(uninterrupted, tmp_path):
    losses: dict[int, float] = {}
    for attempt, (ranks, stop) in enumerate(RANKS_AND_STOPS, start=1):
        environ = {
            contract.DDPJOB_CHECKPOINT_DIR: str(tmp_path / "checkpoints"),
            contract.DDPJOB_ATTEMPT: str(attempt),
            "STOP_AT": str(stop or 0),
        }
        with started(tmp_path / str(attempt), *KEYS, ranks=ranks, environ=environ, first=stop_at_chosen_step) as run:
            assert run.wait() == ranks * [contract.EXIT_CHECKPOINTED if stop else contract.EXIT_SUCCESS], run.text()
        print(f"{ranks} ranks: steps {min(run.losses)} to {max(run.losses)}")
        assert not losses.keys() & run.losses.keys(), "no step twice"
        losses |= run.losses
    assert list(losses) == list(range(1, STEPS + 1)), "each step once, in order"
    worst = max(abs(loss - uninterrupted.losses[step]) for step, loss in losses.items())
    print(f"largest difference of a loss {worst:.1e}")
    assert worst <= TOLERANCE
    assert uninterrupted.losses[STEPS] < uninterrupted.losses[1] - 0.05, "and it learns"


def test_weights_of_a_checkpoint_start_another_training(uninterrupted, tmp_path):
    job = {contract.DDPJOB_CHECKPOINT_DIR: str(tmp_path / "checkpoints")}
    source = finished(tmp_path / "source", *KEYS, ranks=2, environ=job)
    checkpoint = max((tmp_path / "checkpoints").glob("step-*.pt"))
    keys = ("epochs=1", "globalBatchSize=64", "seed=3", "learningRate=0", f"initialCheckpoint={checkpoint}")
    started_warm = finished(tmp_path / "warm", *keys, ranks=2)
    assert f"initial weights from {checkpoint}" in started_warm.text()
    assert started_warm.weights == source.weights, "which a learning rate of 0 leaves as they are"
    assert uninterrupted.weights != source.weights, "ranks add up in another order"


def test_a_missing_initial_checkpoint_is_refused_in_words(tmp_path):
    with started(tmp_path, "initialCheckpoint=/nowhere/a.pt", ranks=1) as run:
        assert run.wait() == [contract.EXIT_BAD_CONFIG]
    assert "initialCheckpoint /nowhere/a.pt: cannot be read on rank 0: No such file or directory" in run.message()
