"""The number of ranks changes how fast a training goes, not what it learns.

Trainings on different numbers of ranks are compared in float64. In float32 the order of a sum decides the last bit of
it, processors sum in different orders, and now and then such a bit decides which branch of a ReLU or which pixel of a
max-pooling is taken; from there on the losses diverge, on some processors within 40 steps.
"""

import os
from pathlib import Path

import pytest
import torch

from ddpjob_ranks import contract
from support.forked_ranks import ForkedRun, finished, started
from support.programs import faulty_rank

#: 1,438 samples in steps of 205, which no number of ranks divides, and one of 3, which leaves one of 4 ranks without.
KEYS = ("epochs=4", "globalBatchSize=205", "learningRate=0.1", "logEverySteps=1", "verifyReplicasEverySteps=4")
STEPS = 32
#: Where each attempt is stopped, and on how many ranks it runs: within an epoch each time.
RANKS_AND_STOPS = ((4, 6), (2, 13), (3, 22), (4, None))
#: Losses between 2.3 and 0.8 are printed with 8 decimals or more, and this is one unit of the last of them. It holds on
#: any processor: float64 sums in different orders differ by 1e-15, training amplifies that to 1e-11 at most (float32:
#: 1e-7 to 1e-3), and a branch that hangs on the last bit is 1e9 times rarer than in float32.
TOLERANCE = 1.01e-8


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> ForkedRun:
    return finished(tmp_path_factory.mktemp("alone"), *KEYS, ranks=1, first=in_float64)


def in_float64() -> None:
    """In each rank: weights, images, gradients and losses are float64, as nothing in the recipe names a type."""
    torch.set_default_dtype(torch.float64)


def in_float64_up_to_a_chosen_step() -> None:
    """In each rank: the agreement to stop also comes at the step in STOP_AT, on all ranks."""
    from ddpjob_trainer import loop

    in_float64()
    take_step = loop.Training.take_step

    def counted(training, step, timer):
        if step + 1 == int(os.environ["STOP_AT"]):
            training.session.stop.request.received = True  # as SIGTERM sets it
        return take_step(training, step, timer)

    loop.Training.take_step = counted  # type: ignore[method-assign]


def check_same_losses(alone: ForkedRun, losses: dict[int, float]) -> None:
    assert list(losses) == list(alone.losses) == list(range(1, STEPS + 1)), "each step once, in order"
    worst = max(abs(loss - alone.losses[step]) for step, loss in losses.items())
    print(f"largest difference of a loss {worst:.1e}")
    assert worst <= TOLERANCE
    assert alone.losses[STEPS] < alone.losses[1] - 0.5, "and it learns: from 2.3 to 0.8"


def test_losses_of_attempts_on_4_2_3_and_4_ranks_are_those_of_one_process(alone, tmp_path):
    losses: dict[int, float] = {}
    for attempt, (ranks, stop) in enumerate(RANKS_AND_STOPS, start=1):
        environ = {
            contract.DDPJOB_CHECKPOINT_DIR: str(tmp_path / "checkpoints"),
            contract.DDPJOB_ATTEMPT: str(attempt),
            "STOP_AT": str(stop or 0),
        }
        folder = tmp_path / str(attempt)
        with started(folder, *KEYS, ranks=ranks, environ=environ, first=in_float64_up_to_a_chosen_step) as run:
            assert run.wait() == ranks * [contract.EXIT_CHECKPOINTED if stop else contract.EXIT_SUCCESS], run.text()
        assert not losses.keys() & run.losses.keys(), "no step twice"
        losses |= run.losses
    check_same_losses(alone, losses)


def test_weights_of_a_checkpoint_start_another_training(tmp_path):
    job = {contract.DDPJOB_CHECKPOINT_DIR: str(tmp_path / "checkpoints")}
    source = finished(tmp_path / "source", *KEYS, "epochs=1", ranks=2, environ=job)
    checkpoint = max((tmp_path / "checkpoints").glob("step-*.pt"))
    keys = ("epochs=1", "globalBatchSize=64", "seed=3", "learningRate=0", f"initialCheckpoint={checkpoint}")
    started_warm = finished(tmp_path / "warm", *keys, ranks=2)
    assert f"initial weights from {checkpoint}" in started_warm.text()
    assert started_warm.weights == source.weights, "which a learning rate of 0 leaves as they are"


def test_a_missing_initial_checkpoint_is_refused(tmp_path):
    with started(tmp_path, "initialCheckpoint=nowhere/a.pt", ranks=2) as run:
        assert run.wait() == 2 * [contract.EXIT_BAD_CONFIG]
    path = Path("nowhere/a.pt").absolute()
    assert f"initialCheckpoint {path}: cannot be read on rank 0: No such file or directory" in run.message()


def test_a_rank_that_drifts_is_found_at_the_next_check(tmp_path):
    fault = {"FAULT": "drift", "FAULTY_RANK": "1", "FAULT_STEP": "0"}
    with started(tmp_path, *KEYS, ranks=2, environ=fault, first=faulty_rank.arrange) as run:
        assert run.wait() == [contract.EXIT_PROGRAM_ERROR, contract.EXIT_PROGRAM_ERROR]
    assert run.message().endswith("after step 4 parameter 2.weight of ranks [1] differs from rank 0's")
    assert max(run.losses) == 4
