"""A recipe of a user: any map-style data set, with workers, and all that changes a step, resumes with the very same bits."""

import hashlib
import json
import shutil
import signal
from pathlib import Path

import pytest

from ddpjob_ranks import contract
from ddpjob_trainer import replicas
from ddpjob_trainer.export import read_tensors
from support.forked_ranks import ForkedRun, finished, may_have_workers, started
from support.programs import preempted_rank

#: 1,438 samples in steps of 204, which 3 ranks share unevenly, in parts of 30 at most; each step clips its gradient and
#: updates the moving average.
KEYS = (
    "recipe=support.programs.noisy_recipe:noisy",
    "settings={width: 24}",
    "microBatchSize=30",
    "logEverySteps=1",
    "checkpointEverySteps=3",
    "keepCheckpoints=9",
    "evaluateEverySteps=5",
    "evaluationBatchSize=50",
)
RANKS = 3


def job(folder: Path, attempt: int) -> dict[str, str]:
    return {contract.DDPJOB_CHECKPOINT_DIR: str(folder), contract.DDPJOB_ATTEMPT: str(attempt)}


def results(run: ForkedRun) -> dict[str, str]:
    """The metrics of each evaluation, by step."""
    lines = [line for line in run.text().splitlines() if line.startswith("after ")]
    return {line.split()[1]: line.partition(": ")[2] for line in lines}


#: Where an attempt is interrupted, at which rank, after how many steps of the attempt, and by which signal. The first is
#: the evaluation after step 5, of which a checkpoint is saved when it has stopped.
INTERRUPTIONS = (
    ("evaluation", 0, 5, signal.SIGTERM),
    ("backward", 2, 2, signal.SIGKILL),
    ("evaluation", 1, 2, signal.SIGKILL),
    ("write", 0, 3, signal.SIGKILL),
    ("checkpoint", 0, 1, signal.SIGKILL),
    ("agreement", 1, 2, signal.SIGKILL),
)


@pytest.mark.timeout(1200)  # eight starts of three ranks
@pytest.mark.parametrize(
    ("precision", "interruptions"),
    [("float32", INTERRUPTIONS), ("float16", INTERRUPTIONS[:2]), ("bfloat16", INTERRUPTIONS[:2])],
)
def test_a_killed_and_resumed_run_has_the_same_bits_with_another_number_of_workers(tmp_path, precision, interruptions):
    keys, complete, checkpoints = (*KEYS, f"precision={precision}"), tmp_path / "complete", tmp_path / "checkpoints"
    whole = finished(
        tmp_path / "whole", *keys, "dataWorkers=2", ranks=RANKS, environ=job(complete, 1), first=may_have_workers
    )
    assert len(whole.losses) == 16
    assert list(results(whole)) == ["5", "8", "10", "15", "16"]
    assert all("error 0." in text or "error 1." in text or "error 2." in text for text in results(whole).values())
    runs = []
    for attempt, (point, rank, after, number) in enumerate(interruptions, start=1):
        place = {"PREEMPTED_AT": point, "PREEMPTED_RANK": str(rank), "PREEMPTED_STEP": str(after)}
        environ = {**job(checkpoints, attempt), **place, "PREEMPTED_BY": str(int(number))}
        folder, here = tmp_path / str(attempt), (*keys, "dataWorkers=0")
        with started(folder, *here, ranks=RANKS, environ=environ, first=preempted_rank.arrange) as run:
            expected = contract.EXIT_CHECKPOINTED if number == signal.SIGTERM else -number
            assert run.wait()[rank] == expected, run.text()
            runs.append(run)
    runs.append(finished(tmp_path / "last", *keys, "dataWorkers=0", ranks=RANKS, environ=job(checkpoints, 100)))
    assert min(runs[-1].losses) > 5
    assert all(run.losses.items() <= whole.losses.items() for run in runs)
    assert runs[-1].weights == whole.weights
    evaluations = [(step, text) for run in runs for step, text in results(run).items()]
    assert set(evaluations) == set(results(whole).items()), "an evaluation that was interrupted is repeated"
    exported = [
        {path.name: path.read_bytes() for path in folder.glob("*.safetensors")} for folder in (checkpoints, complete)
    ]
    assert exported[0] == exported[1]


def test_the_best_weights_are_kept_apart_and_start_another_training(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    run = finished(tmp_path / "run", *KEYS, "dataWorkers=0", ranks=1, environ=job(checkpoints, 1))
    errors = {int(step): float(text.split()[1].rstrip(",")) for step, text in results(run).items()}
    best = json.loads((checkpoints / "best-config.json").read_text())
    assert best["step"] == min(errors, key=lambda step: errors[step])
    assert best["metrics"]["error"] == pytest.approx(min(errors.values()), abs=1e-5)
    last = json.loads((checkpoints / "config.json").read_text())
    assert (last["step"], last["settings"]) == (16, {"width": 24, "dropout": 0.3})
    tensors = read_tensors((checkpoints / "model.safetensors").read_bytes())
    assert list(tensors)[:2] == ["0.weight", "0.bias"]

    shutil.copy(checkpoints / "model.safetensors", tmp_path / "start.safetensors")
    start = (*KEYS, "dataWorkers=0", f"initialCheckpoint={tmp_path / 'start.safetensors'}", "learningRate=0")
    again = finished(tmp_path / "again", *start, "epochs=1", ranks=1)
    parameters = [values for name, values in tensors.items() if "running" not in name and "num_batches" not in name]
    assert again.weights == hashlib.sha256("".join(map(replicas.digest, parameters)).encode()).hexdigest()
