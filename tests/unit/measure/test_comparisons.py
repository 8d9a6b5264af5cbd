import argparse

import pytest
import torch

from ddpjob_measure import bench, compare
from ddpjob_measure.__main__ import main

GIVEN = {"recipe": "digits", "ranks": 2, "batch": 64, "steps": 2, "windows": 1}


def test_the_cost_of_sync_batch_norm_is_not_invented_without_gpus(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)

    assert main(["compare", "sync-batch-norm"]) == 2
    assert "found 0 GPUs; PyTorch has SyncBatchNorm for GPUs alone" in capsys.readouterr().err


def test_data_parallel_is_one_process_and_ddp_also_several():
    cases = compare.cases(argparse.Namespace(subject="data-parallel", **GIVEN))

    assert [(name, task.options["wrapper"], ranks) for name, task, ranks in cases] == [
        ("DataParallel", "data-parallel", 1),
        ("DDP", "ddp", 1),
        ("DDP", "ddp", 2),
    ]


def test_sync_batch_norm_is_measured_off_then_on():
    cases = compare.cases(argparse.Namespace(subject="sync-batch-norm", **GIVEN))

    assert [task.config["syncBatchNorm"] for _, task, _ in cases] == [False, True]


def test_options_of_ddp_are_compared_with_those_that_the_trainer_has():
    first, *others = compare.cases(argparse.Namespace(subject="ddp-options", **GIVEN))

    assert (first[0], first[1].config, first[1].options["ddp"]) == (
        "as the trainer has it",
        {"recipe": "digits", "globalBatchSize": 64},
        {},
    )
    assert all(task.options["ddp"] or task.config != first[1].config for _, task, _ in others)


def test_the_plain_script_stands_beside_each_recipe_it_can_train():
    given = argparse.Namespace(
        recipes=["digits", "resnet18-cifar10"], profiles=["fast"], batch=16, steps=1, windows=1, workers=2
    )

    assert [(row.name, row.task.program) for row in bench.contenders(given)] == [
        ("trainer digits fast", "trainer"),
        ("plain resnet18-cifar10", "plain"),
        ("trainer resnet18-cifar10 fast", "trainer"),
    ]


@pytest.mark.parametrize("recipe", bench.WITH_YARDSTICK)
def test_on_a_gpu_no_epoch_ends_within_a_measured_run(monkeypatch, recipe):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)

    given = parser.parse_args(["--recipes", recipe])

    assert all(bench.num_samples(row.task) <= bench.MAX_IMAGES for row in bench.contenders(given))


def test_a_batch_of_more_images_than_there_are_is_refused(capsys):
    assert main(["bench", "--batch", "60000"]) == 2
    assert "--batch is 60000; expected at most 50000" in capsys.readouterr().err


def test_options_of_ddp_are_not_compared_on_one_rank(capsys):
    assert main(["compare", "ddp-options", "--ranks", "1"]) == 2
    assert "--ranks is 1" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("bench", "--recipes"), ("scale", "--recipe"), ("accuracy", "--recipe")])
def test_photographs_are_not_made_up(capsys, monkeypatch, command):
    monkeypatch.setenv("DDPJOB_DATA_DIR", "")

    assert main([*command, "resnet50-224"]) == 2
    assert "name a folder of them in DDPJOB_DATA_DIR, or measure resnet50-224-synthetic" in capsys.readouterr().err
