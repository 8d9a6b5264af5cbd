"""What `ddpjob_measure` measures on real ranks, very little of each; how fast anything is, no test says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from ddpjob_measure import processes
from ddpjob_measure.__main__ import main
from ddpjob_measure.plain_ddp import DecodedImages, PlainTraining
from ddpjob_measure.task import PARTS, MeasureError, Task
from ddpjob_ranks.distributed import Gang
from support import REPOSITORY
from support.forked_ranks import measured


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured ranks are forked."""
    monkeypatch.setattr(processes, "output_of", measured)


@pytest.mark.usefixtures("forked")
def test_the_step_of_two_ranks_is_split_into_its_parts() -> None:
    task = Task(program="trainer", config={"recipe": "digits", "globalBatchSize": 64}, steps=2, windows=2)
    found = processes.run(task, world_size=2)
    assert (found.world_size, found.images_per_second.num) == (2, 2)
    assert {part for part in PARTS if found.part_seconds[part].median > 0} == set(PARTS)
    parts = sum(found.part_seconds[part].median for part in PARTS)
    assert parts <= found.step_seconds.high * 1.001  # the barrier at a window's end is in no part
    assert found.cpu_seconds.low > 0


@pytest.mark.usefixtures("forked")
def test_the_bucket_plan_of_the_digits_holds_their_eight_parameters_backwards(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["buckets", "--recipe", "digits", "--steps", "2"]) == 0
    output = capsys.readouterr().out
    assert "1 buckets, 0.6 MiB of gradients" in output
    assert "| 0 | 0.5772 | 8 | 8.bias | 0.bias |" in output
    assert "on their way for" in output


def test_a_module_that_fails_is_reported_with_the_end_of_its_output() -> None:
    command = ["ddpjob_measure.rank", "--task", Task(program="rocket", config={"recipe": "digits"}).to_json()]
    with pytest.raises(MeasureError, match=r"(?s)the task: exit code 2\n.*no program rocket"):
        processes.output_of(command, "the task", world_size=1)


def test_the_plain_script_trains_over_several_epochs(tmp_path: Path, gang: Gang) -> None:
    for name, brightness in {"dark": 0, "light": 255}.items():
        (tmp_path / name).mkdir()
        for number in range(20):
            Image.new("RGB", (8, 8), (brightness,) * 3).save(tmp_path / name / f"{number}.png")
    torch.manual_seed(0)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    plain = PlainTraining(model, DecodedImages(tmp_path), gang, global_batch_size=16, num_workers=1)
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
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY / "trainer"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
