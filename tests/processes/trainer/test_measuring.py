"""The commands of `python -m ddpjob_measure` on real ranks, very little of each; how fast anything is, no test says."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from ddpjob_measure import processes
from ddpjob_measure.__main__ import main
from ddpjob_measure.compare import DDP_OPTIONS
from ddpjob_measure.plain_ddp import PlainTraining
from ddpjob_measure.task import PARTS, Task
from ddpjob_ranks.distributed import Gang
from support.forked_ranks import measured

BENCH = ("bench", "--recipes", "digits", "--ranks", "2", "--profiles", "fast", "--steps", "2", "--windows", "2")


def output_of(*arguments: str) -> str:
    command = [sys.executable, "-m", "ddpjob_measure", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bench_splits_the_step_of_two_ranks_and_records_on_what(tmp_path: Path) -> None:
    output = output_of(*BENCH, "--results", str(tmp_path), "--name", "tiny")
    assert output.endswith((tmp_path / "tiny.md").read_text() + "\n")
    record = json.loads((tmp_path / "tiny.json").read_text())
    (row,) = record["rows"]
    assert (row["world_size"], row["images_per_second"]["num"]) == (2, 2)
    assert {part for part in PARTS if row["part_seconds"][part]["median"] > 0} == set(PARTS)
    parts = sum(row["part_seconds"][part]["median"] for part in PARTS)
    assert parts <= row["step_seconds"]["high"] * 1.001  # the barrier at a window's end is in no part
    assert row["cpu_seconds"]["low"] > 0
    assert "| CPU ms a step |" in output
    assert record["surroundings"]["torch"]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command prints; its ranks are forked."""
    monkeypatch.setattr(processes, "output_of", measured)

    def run(*arguments: str) -> str:
        assert main(arguments) == 0
        return capsys.readouterr().out

    return run


def test_the_bucket_plan_of_the_digits_holds_their_eight_parameters_backwards(printed: Callable[..., str]) -> None:
    output = printed("buckets", "--recipe", "digits", "--steps", "2")
    assert "digits: 1 buckets, 0.6 MiB of gradients" in output
    assert "| 0 | 0.58 | 8 | 8.bias | 0.bias |" in output
    assert "on their way for" in output


def test_accuracy_over_seeds_has_a_curve(printed: Callable[..., str], tmp_path: Path) -> None:
    keys = ("--set", "epochs=2", "--set", "globalBatchSize=512")
    printed("accuracy", "--seeds", "0", "1", *keys, "--results", str(tmp_path), "--name", "tiny")
    record = json.loads((tmp_path / "tiny.json").read_text())
    assert [row["seed"] for row in record["rows"]] == [0, 1]
    assert len({row["weights_sha256"] for row in record["rows"]}) == 2
    for row in record["rows"]:
        assert row["accuracy_by_step"].keys() == row["seconds_by_step"].keys() == {"3", "6"}
        assert 0 < row["seconds_by_step"]["3"] < row["seconds_by_step"]["6"] < row["whole_seconds"]
    assert (tmp_path / "tiny.png").read_bytes().startswith(b"\x89PNG")


def test_options_of_ddp_are_compared(printed: Callable[..., str]) -> None:
    lines = printed(
        "compare", "ddp-options", "--recipe", "digits", "--ranks", "2", "--steps", "1", "--windows", "1"
    ).splitlines()
    assert [line.split(" | ")[0] for line in lines if line.startswith("| ")][2:] == [
        f"| {name}" for name in DDP_OPTIONS
    ]


def test_steps_with_and_without_restarts_in_place_are_compared() -> None:
    output = output_of("in-place", "--steps", "2", "--pairs", "1")
    assert re.search(r"digits: \S+ ms of CPU time a step, \S+ ms with restarts in place: ", output), output


def test_the_plain_script_trains_over_several_epochs(tmp_path: Path, gang: Gang) -> None:
    for name, brightness in {"dark": 0, "light": 255}.items():
        (tmp_path / name).mkdir()
        for number in range(20):
            Image.new("RGB", (8, 8), (brightness,) * 3).save(tmp_path / name / f"{number}.png")
    torch.manual_seed(0)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    plain = PlainTraining(model, tmp_path, gang, global_batch_size=16, num_workers=1)
    losses = []
    for _ in range(60):  # 30 epochs: the loader starts again by itself
        before = plain.running_loss
        plain.take_step()
        losses.append(plain.running_loss - before)
    assert sum(losses[-5:]) < sum(losses[:5])


def test_a_measured_rank_with_data_workers_ends():
    task = Task(
        program="trainer",
        config={"recipe": "examples.own_recipe:digits_mlp", "dataWorkers": 1},
        warmup_steps=1,
        steps=1,
        windows=1,
    )
    command = [sys.executable, "-m", "ddpjob_measure.rank", "--task", task.to_json()]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "trainer"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
