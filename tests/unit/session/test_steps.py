"""The steps of a session: as an iterator, however a loop holds it, and driven by a loop that belongs to somebody else."""

import os
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpjob.session import Session
from ddpjob_session import run

pytestmark = pytest.mark.usefixtures("stop")


class Framework:
    """A trainer with a loop of its own, which calls back; it wraps the model, and finds its place in the data, itself."""

    def __init__(self, total: int) -> None:
        torch.manual_seed(0)
        self.total = total
        self.losses: list[float] = []
        self.steps: Any = None
        self.model = DistributedDataParallel(nn.Linear(2, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)

    def train(self, first: int, on_begin, on_step_begin, on_step_end) -> None:
        on_begin(self)
        for number in range(first, self.total):
            on_step_begin(number)
            torch.manual_seed(number)
            loss = self.model(torch.randn(4, 2)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            on_step_end(number)
            self.losses.append(loss.item())


def trained(total, *, asked=None):
    """The step at which it began, and the framework after it. `asked` is who is asked to stop, and in which step."""
    with Session() as session:
        framework = Framework(total)
        first = session.steps_done()  # before anything is tracked

        def begin(framework):
            session.adopt(framework.model)
            session.track(model=framework.model, optimizer=framework.optimizer)
            framework.steps = session.steps(framework.total, checkpoint_every=100)

        def begin_step(number):
            assert framework.steps.begin_step() == number

        def end_step(number):
            framework.steps.end_step()
            if asked is not None and number == asked[1]:
                asked[0].received = True

        framework.train(first, begin, begin_step, end_step)
    return first, framework


def test_a_framework_drives_the_steps_and_a_stop_and_a_resume_lose_nothing(stop, saved, tmp_path):
    with pytest.raises(SystemExit) as ended:
        trained(60, asked=(stop, 2))
    assert ended.value.code == 75
    stop.received = False
    (stopped_after,) = saved()
    first, resumed = trained(60)
    assert (first, list(saved())) == (stopped_after, [stopped_after, 60])
    os.environ["DDPJOB_CHECKPOINT_DIR"] = str(tmp_path / "whole")
    _, whole = trained(60)
    assert resumed.losses == whole.losses[first:]


def test_the_buckets_of_a_model_that_somebody_else_has_wrapped_are_settled():
    with Session() as session:
        model = DistributedDataParallel(nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))), bucket_cap_mb=0.0005)
        assert session.adopt(model) is model
        plans = []
        for _ in range(2):
            model(torch.ones(1, 8)).sum().backward()
            plans.append([bucket.buffer().numel() for bucket in model.reducer._get_zeros_like_grad_buckets()])
    assert plans == 2 * [[144, 144]]


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()


class Bar:
    """As tqdm's: it keeps the iterable, and its __iter__ is a generator."""

    def __init__(self, iterable) -> None:
        self.iterable = iterable

    def __iter__(self):
        yield from self.iterable


@pytest.mark.parametrize("held", [lambda steps: steps, Bar, enumerate, iter])
def test_a_step_that_is_left_by_break_counts_however_the_loop_holds_the_steps(saved, held):
    with Session() as session:
        model = session.replicate(nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state = session.track(model=model, optimizer=optimizer)
        steps = session.steps(100)
        loop = held(steps)
        for _ in loop:
            one_step(model, optimizer)
            if steps.done == 4:
                break
    assert (state.step, list(saved())) == (5, [5])


def test_calls_in_the_wrong_order_are_refused():
    with Session() as session:
        session.track()
        steps = session.steps(1)
        with pytest.raises(RuntimeError, match=r"no step has begun; call begin_step before each step"):
            steps.end_step()
        assert steps.begin_step() == 0
        with pytest.raises(RuntimeError, match=r"the step before, of 0 and 1 in all, has not ended; call end_step"):
            steps.begin_step()
        steps.end_step()
        with pytest.raises(RuntimeError, match=r"was the last one"):
            steps.begin_step()


def test_a_checkpoint_that_appears_after_the_position_was_told_ends_the_attempt(monkeypatch):
    """A framework has found its place in the data by then."""
    with Session() as session:
        session.track()
        for _ in session.steps(2):
            pass
    read = run.Run._read_newest
    with Session() as session:
        monkeypatch.setattr(run.Run, "_read_newest", lambda *_: None)
        assert session.steps_done() == 0
        monkeypatch.setattr(run.Run, "_read_newest", read)
        session.track()
        with pytest.raises(RuntimeError, match=r"steps_done: it returned 0, .* a checkpoint of step 2"):
            session.steps(3)


def drawn(checkpoint) -> torch.Tensor:
    return checkpoint["random"][0]["torch"]


def resume_and_stop_at_once(stop, folder) -> None:
    with Session() as session:
        torch.manual_seed(7)
        session.track()
        steps = session.steps(3)
        # As after a restart in place, whose state comes from memory and is in no checkpoint.
        session._run.writer.newest_step = None
        for path in folder.glob("step-*"):
            path.unlink()
        stop.received = True
        steps.begin_step()


def test_ranks_that_stop_before_their_first_step_save_the_generators_that_they_found(stop, saved, tmp_path):
    with Session() as session:
        session.track()
        for _ in session.steps(2):
            torch.rand(1)
    before = drawn(saved()[2])
    with pytest.raises(SystemExit, match="75"):
        resume_and_stop_at_once(stop, tmp_path)
    assert torch.equal(drawn(saved()[2]), before)
