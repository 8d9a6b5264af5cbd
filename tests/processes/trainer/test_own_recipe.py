"""A recipe of a user: any map-style data set, with workers, and all that changes a step, resumes with the very same bits."""

import hashlib
import json
import multiprocessing
import shutil
from pathlib import Path

import pytest

from ddpjob_ranks import contract
from ddpjob_trainer import replicas
from ddpjob_trainer.export import read_tensors
from forked_ranks import ForkedRun, finished

#: 1,438 samples in steps of 204, which 3 ranks share unevenly, in parts of 30 at most; each step clips its gradient and
#: updates the moving average.
KEYS = (
    "recipe=noisy_recipe:noisy",
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


def may_have_workers() -> None:
    """A rank of `forked_ranks` is a daemon of multiprocessing, which may not start processes; a real one is not."""
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]


def results(run: ForkedRun) -> dict[str, str]:
    """The metrics of each evaluation, by step."""
    lines = [line for line in run.text().splitlines() if line.startswith("after ")]
    return {line.split()[1]: line.partition(": ")[2] for line in lines}


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_resumed_run_has_the_same_bits_with_another_number_of_workers(tmp_path, precision):
    checkpoints, keys = tmp_path / "checkpoints", (*KEYS, f"precision={precision}")
    whole = finished(
        tmp_path / "whole", *keys, "dataWorkers=2", ranks=RANKS, environ=job(checkpoints, 1), first=may_have_workers
    )
    assert len(whole.losses) == 16
    assert list(results(whole)) == ["5", "8", "10", "15", "16"]
    assert all("error 0." in text or "error 1." in text or "error 2." in text for text in results(whole).values())
    exported = {path.name: path.read_bytes() for path in checkpoints.glob("*.safetensors")}
    for path in checkpoints.glob("step-*"):
        if int(path.name.split("-")[1]) > 6:
            path.unlink()
    resumed = finished(tmp_path / "resumed", *keys, "dataWorkers=0", ranks=RANKS, environ=job(checkpoints, 2))
    assert min(resumed.losses) == 7
    assert resumed.losses == {step: loss for step, loss in whole.losses.items() if step >= 7}
    assert resumed.weights == whole.weights
    assert results(resumed).items() <= results(whole).items()
    assert {path.name: path.read_bytes() for path in checkpoints.glob("*.safetensors")} == exported


def test_the_best_weights_are_kept_apart_and_start_another_training(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    run = finished(tmp_path / "run", *KEYS, "dataWorkers=0", ranks=1, environ=job(checkpoints, 1))
    errors = {int(step): float(text.split()[1].rstrip(",")) for step, text in results(run).items()}
    best = json.loads((checkpoints / "best-config.json").read_text())
    assert best["step"] == min(errors, key=lambda step: errors[step])
    assert best["metrics"]["error"] == pytest.approx(min(errors.values()), abs=1e-5)
    last = json.loads((checkpoints / "config.json").read_text())
    assert (last["step"], last["settings"]) == (16, {"width": 24})
    tensors = read_tensors((checkpoints / "model.safetensors").read_bytes())
    assert list(tensors)[:2] == ["0.weight", "0.bias"]

    shutil.copy(checkpoints / "model.safetensors", tmp_path / "start.safetensors")
    start = (*KEYS, "dataWorkers=0", f"initialCheckpoint={tmp_path / 'start.safetensors'}", "learningRate=0")
    again = finished(tmp_path / "again", *start, "epochs=1", ranks=1)
    parameters = [values for name, values in tensors.items() if "running" not in name and "num_batches" not in name]
    assert again.weights == hashlib.sha256("".join(map(replicas.digest, parameters)).encode()).hexdigest()
