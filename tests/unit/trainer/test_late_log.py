"""When the loss of a step is read: at once on a CPU, and on a GPU only after the next step is in its queue."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddpjob_ranks.distributed import is_peer_loss
from ddpjob_ranks.watch.timeline import Phase, Timeline
from ddpjob_trainer.loop import DivergedError, Training


class Counted(Training):
    """A training whose steps do nothing but take their time."""

    __slots__ = ()

    def take_step(self, step: int, timer: Any) -> torch.Tensor:
        for phase in (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
            timer.enter(phase)
        timer.enter(Phase.LOG, step=step + 1)
        return torch.tensor(float("nan") if step == 7 else float(step))


class Event:
    """A moment of a GPU; all steps take 1 ms."""

    def __init__(self, *, enable_timing: bool = False) -> None: ...

    def record(self) -> None: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, _: "Event") -> float:
        return 1.0


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch):
    """A training on the device; its lines appear in the list."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    lines: list[tuple[int, float]] = []

    def begin(device: str, *, has_lost_collectives: bool = False) -> tuple[Counted, list[tuple[int, float]]]:
        state = SimpleNamespace(step=0, optimizer=SimpleNamespace(param_groups=[{"lr": 0.1}]))

        def step_done(**_: object) -> None:
            state.step += 1

        session = SimpleNamespace(
            gang=SimpleNamespace(device=torch.device(device), sum_=lambda loss: loss, world_size=1),
            timeline=Timeline(),
            report=SimpleNamespace(log=lambda *, step, loss, **_: lines.append((step, loss))),
            stop_reached=lambda: False,
            step_done=step_done,
            has_lost_collectives=lambda: has_lost_collectives,
        )
        sampling = SimpleNamespace(global_batch=lambda _: [0])
        parts: Any = {"session": session, "state": state, "feed": SimpleNamespace(sampling=sampling)}
        config = SimpleNamespace(learning_rate=0.1)
        return Counted(config=config, data=None, recipe=None, numerics=None, replica=None, **parts), lines

    return begin


def test_the_loss_is_read_at_once_on_a_cpu(begin) -> None:
    training, lines = begin("cpu")
    training.advance(0, logged=True)
    assert lines == [(1, 0.0)]


def test_the_loss_of_a_gpu_is_read_after_the_next_step(begin) -> None:
    training, lines = begin("cuda")
    training.advance(0, logged=True)
    assert lines == []
    training.advance(1, logged=True)
    assert lines == [(1, 0.0)]
    training.write_log()  # as before a checkpoint
    assert lines == [(1, 0.0), (2, 1.0)]


def test_a_loss_that_is_read_late_names_its_own_step(begin) -> None:
    training, _ = begin("cuda")
    training.state.step = 7
    training.advance(7, logged=True)
    with pytest.raises(DivergedError, match="after step 8 "):
        training.advance(8, logged=False)


def test_a_loss_that_is_wrong_since_another_rank_failed_is_no_divergence(begin) -> None:
    training, _ = begin("cuda", has_lost_collectives=True)
    training.state.step = 7
    training.advance(7, logged=True)
    with pytest.raises(RuntimeError, match="NCCL aborted a collective") as raised:
        training.advance(8, logged=False)
    assert is_peer_loss(raised.value)
