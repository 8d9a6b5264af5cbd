import argparse

import pytest
import torch

from ddpjob_measure import bench, compare, in_place

GIVEN = {"recipe": "digits", "ranks": 2, "batch": 64, "steps": 2, "windows": 1}


def test_data_parallel_is_one_process_and_ddp_also_several_and_sync_batch_norm_is_off_then_on():
    cases = compare.cases(argparse.Namespace(subject="data-parallel", **GIVEN))
    assert [(name, task.options["wrapper"], ranks) for name, task, ranks in cases] == [
        ("DataParallel", "data-parallel", 1),
        ("DDP", "ddp", 1),
        ("DDP", "ddp", 2),
    ]
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


def test_runs_with_restarts_in_place_are_compared_with_their_neighbours():
    """The load of the machine changes both of a pair alike."""
    assert in_place.comparison([(0.010, 0.0101), (0.020, 0.0201), (0.030, 0.0306)]) == (
        "20.0 ms of CPU time a step, 20.1 ms with restarts in place: +1.0 % (+0.5 to +2.0 %)"
    )


def test_the_plain_script_is_measured_with_each_recipe_that_it_can_train():
    given = argparse.Namespace(
        recipes=["digits", "resnet18-cifar10"], profiles=["fast"], batch=16, steps=1, windows=1, workers=2
    )
    assert [(row.name, row.task.program) for row in bench.contenders(given)] == [
        ("trainer digits fast", "trainer"),
        ("plain resnet18-cifar10", "plain"),
        ("tuned resnet18-cifar10", "plain"),
        ("trainer resnet18-cifar10 fast", "trainer"),
    ]


@pytest.mark.parametrize("recipe", bench.WITH_YARDSTICK)
def test_on_a_gpu_no_epoch_ends_within_a_measured_run(monkeypatch, recipe):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)

    given = parser.parse_args(["--recipes", recipe])

    assert all(bench.num_samples(row.task) <= bench.MAX_IMAGES for row in bench.contenders(given))
