"""Optimizers and schedules of the learning rate."""

import itertools

import pytest
import torch

from ddpjob_trainer import recipes
from ddpjob_trainer.config import parse_config
from ddpjob_trainer.optim import cosine, linear, set_learning_rate, sgd


def rates(*groups, steps_per_epoch=5, schedule=cosine, **changes):
    """The rates of each step, by group."""
    parameters = [{"params": [torch.nn.Parameter(torch.ones(1))], **group} for group in groups]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    config = recipes.resolve(
        parse_config({"recipe": "digits", "epochs": 10, "learningRate": 1.0, "warmupEpochs": 2, **changes})
    )
    found = []
    for step in range(config.epochs * steps_per_epoch):
        set_learning_rate(optimizer, step, config, steps_per_epoch=steps_per_epoch, schedule=schedule)
        found.append([group["lr"] for group in optimizer.param_groups])
    return list(zip(*found, strict=True))


def test_the_rate_rises_linearly_to_the_peak_then_falls_to_zero():
    (all_rates,) = rates({})
    warm_up, decay = all_rates[:10], all_rates[10:]
    assert warm_up == pytest.approx([(step + 1) / 11 for step in range(10)])
    assert decay[0] == 1.0
    assert decay[20] == pytest.approx(0.5)
    assert all(later < earlier for earlier, later in itertools.pairwise(decay))
    assert 0 < decay[-1] < 0.01


def test_without_warm_up_the_rate_starts_at_the_peak():
    assert rates({}, warmupEpochs=0)[0][0] == 1.0


def test_a_warm_up_longer_than_the_training_never_divides_by_zero():
    assert max(rates({}, warmupEpochs=100)[0]) < 1.0


def test_weight_decay_is_for_matrices_and_filters_only():
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Linear(2, 2))
    optimizer = sgd(model, recipes.resolve(parse_config({"recipe": "digits", "weightDecay": 0.5})))
    decayed = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {name for name, p in model.named_parameters() if decayed[id(p)] > 0} == {"0.weight", "2.weight"}


def test_a_group_may_end_before_the_others_and_has_a_schedule_of_its_own_until_then():
    short = {"lr_scale": 10.0, "lr_share": 0.4}
    weights, biases = rates({}, short, steps_per_epoch=1, schedule=linear, warmupEpochs=0)
    assert weights == pytest.approx([1 - step / 10 for step in range(10)])
    assert biases == pytest.approx([10.0, 7.5, 5.0, 2.5, *6 * [0.0]])
