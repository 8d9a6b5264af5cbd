from functools import partial

import pytest
import torch
from torch import nn

from ddpjob_measure import clock
from ddpjob_measure.clock import StepClock, mean_parts
from ddpjob_measure.task import PARTS


class Training:
    """A step whose parts take the seconds that are asked for, on a clock of its own."""

    def __init__(self, **seconds: float) -> None:
        self.now = 100.0
        self.seconds = dict.fromkeys(PARTS, 0.0) | seconds
        self.model = nn.Linear(3, 1)
        self.model.register_forward_hook(lambda *_: self.spend("forward_backward"))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        update = self.optimizer.step
        self.optimizer.step = partial(update, self.closure)  # type: ignore[method-assign]

    def closure(self) -> float:
        self.spend("optimizer")
        return 0.0

    def spend(self, part: str) -> None:
        self.now += self.seconds[part]

    def step(self) -> None:
        self.spend("data")
        self.model(torch.ones(2, 3)).sum().backward()
        self.spend("exposed_communication")  # where DDP waits for its buckets
        self.optimizer.step()
        self.spend("host")


def timed(training, monkeypatch, steps=3):
    monkeypatch.setattr(clock, "now", lambda _: training.now)
    step_clock = StepClock(torch.device("cpu"), training.model, training.optimizer)
    for _ in range(steps):
        step_clock.begin_step()
        training.step()
    return step_clock.take()


@pytest.mark.parametrize("part", PARTS)
def test_time_is_booked_where_it_was_spent(part, monkeypatch):
    mean = mean_parts(timed(Training(**{part: 2.0}), monkeypatch))
    assert mean == dict.fromkeys(PARTS, 0.0) | {part: 2.0}


@pytest.mark.parametrize("is_trained", [True, False])
def test_the_parts_add_up_to_the_whole_time(monkeypatch, is_trained):
    training = Training(data=1.0, forward_backward=2.0, exposed_communication=4.0, optimizer=8.0, host=16.0)
    training.model.weight.requires_grad_(is_trained)
    assert [sum(step.values()) for step in timed(training, monkeypatch)] == [31, 31, 31]


def test_a_step_that_leaves_out_a_hook_is_refused(monkeypatch):
    training = Training()
    training.optimizer.step = partial(int)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="a step passed without update, updated: its model or optimizer"):
        timed(training, monkeypatch)


def test_a_closed_clock_marks_nothing():
    training = Training()
    step_clock = StepClock(torch.device("cpu"), training.model, training.optimizer)
    step_clock.close()
    step_clock.begin_step()
    training.step()
    with pytest.raises(RuntimeError, match="without forward, last_gradient, update, updated"):
        step_clock.take()
