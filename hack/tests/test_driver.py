"""A part of a benchmark that fails leaves the others in the record, and what cannot be measured is refused before."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.driver import Run
from bench.trainer import speed
from bench.trainer.__main__ import main
from bench.trainer.accuracy import summary
from ddpjob_measure.task import MeasureError


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(argparse.Namespace(results=tmp_path, name="r", default_name=""), "Title")


def fails() -> int:
    raise MeasureError("2 ranks: exit code 1\nTraceback ...\nRuntimeError: out of memory")


def test_one_part_that_fails_leaves_the_others_in_the_record(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for what, part in (("one", lambda: 1), ("two", fails), ("three", lambda: 3)):
        if value := run.result(what, part):
            run.row(what=what, value=value)
    assert run.end() == 1
    assert [row["value"] for row in json.loads((tmp_path / "r.json").read_text())["rows"]] == [1, 3]
    page = (tmp_path / "r.md").read_text()
    assert "- Failed: two: 2 ranks: exit code 1 ... RuntimeError: out of memory" in page
    assert capsys.readouterr().out == page


def test_the_record_has_each_row_at_once(run: Run, tmp_path: Path) -> None:
    run.row(what="first")
    assert "| first |" in (tmp_path / "r.md").read_text()


def test_a_benchmark_that_fails_altogether_writes_no_record(run: Run, tmp_path: Path) -> None:
    assert run.result("all", fails) is None
    with pytest.raises(MeasureError, match="nothing was measured\nFailed: all"):
        run.end()
    assert not list(tmp_path.iterdir())


def test_more_ranks_than_gpus_are_left_out_and_noted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert speed.that_fit([1, 2, 3], run) == [1]
    assert run.notes == ["Left out: 2, 3 ranks, for which 1 GPUs are too few."]


def test_seeds_have_a_mean_with_its_spread_and_times_to_a_target_count_those_that_reached_it() -> None:
    rows: list[dict[str, Any]] = [
        {"seed": 0, "accuracy %": 90.0, "s to 85 %": 10.0},
        {"seed": 1, "accuracy %": 80.0, "s to 85 %": "not reached"},
    ]
    rows.append({"seed": 2, "accuracy %": 85.0, "s to 85 %": 20.0})
    assert summary(rows) == {"seed": "mean", "accuracy %": "85.00 ± 5.00", "s to 85 %": "15.00 ± 7.07 of 2"}


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    speed.add_arguments(parser)
    return parser.parse_args(arguments)


def test_the_plain_script_is_measured_with_each_recipe_that_it_can_train() -> None:
    given = options("--recipes", "digits", "resnet18-cifar10", "--profiles", "fast", "--keys", "bucketCapMb=1")
    found = [(name, task.program, task.config.get("bucketCapMb")) for name, task in speed.contenders(given)]
    assert found == [
        ("trainer digits fast", "trainer", None),
        ("trainer digits fast bucketCapMb=1", "trainer", 1),
        ("plain resnet18-cifar10", "plain", None),
        ("tuned resnet18-cifar10", "plain", None),
        ("trainer resnet18-cifar10 fast", "trainer", None),
        ("trainer resnet18-cifar10 fast bucketCapMb=1", "trainer", 1),
    ]


@pytest.mark.parametrize("recipe", speed.WITH_YARDSTICK)
def test_on_a_gpu_no_epoch_ends_within_a_measured_run(monkeypatch: pytest.MonkeyPatch, recipe: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    tasks = [task for _, task in speed.contenders(options("--recipes", recipe))]
    assert all(speed.num_samples(task) <= speed.MAX_IMAGES for task in tasks)


PHOTOGRAPHS = "name a folder of them in DDPJOB_DATA_DIR, or measure resnet50-224-synthetic"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("accuracy --recipe resnet18-cifar10", "DDPJOB_DATA_DIR"),
        ("accuracy --recipe resnet18-cifar10", "DDPJOB_TEST_DATA"),
        ("accuracy --recipe resnet50-224-synthetic", "random pixels have nothing to learn"),
        ("accuracy --set seed=7", "--set seed=7: use --seeds"),
        ("accuracy --set recipe=digits", "--set recipe=digits: use --recipe"),
        ("accuracy --recipe resnet50-224", PHOTOGRAPHS),
        ("speed --recipes resnet50-224", PHOTOGRAPHS),
        ("speed --batch 60000", "--batch is 60000; expected at most 50000"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for variable in ("DDPJOB_DATA_DIR", "DDPJOB_TEST_DATA"):
        monkeypatch.delenv(variable, raising=False)
    assert main(arguments.split()) == 2
    assert message in capsys.readouterr().err
