import re
import sys
import time
from collections import OrderedDict

import pytest

from ddpjob_measure import overhead
from ddpjob_measure.__main__ import main


def test_the_cost_of_watching_is_that_of_each_step_and_a_tenth_of_that_of_timed_steps():
    assert overhead.watching(8e-6, 20e-6, step_ms=20) == (
        "marks and spans 8.0 us a step, a hook 20.0 us every 10th step: 10.0 us, 0.05 % of a step of 20 ms"
    )


def test_marks_are_timed_by_the_step(monkeypatch):
    ticks = iter(range(1000))
    monkeypatch.setattr(time, "process_time", lambda: float(next(ticks)))
    assert overhead.marks_seconds() == pytest.approx(1 / overhead.NUM_STEPS), "one second for all of them"


@pytest.fixture(autouse=True)
def hooks_end(monkeypatch):
    """Those that a memory of the state registers for all optimizers."""
    monkeypatch.setattr(sys.modules["torch.optim.optimizer"], "_global_optimizer_pre_hooks", OrderedDict())
    monkeypatch.setattr(overhead, "NUM_KEPT_STEPS", 3)


def test_what_is_kept_in_memory_after_the_forward_pass_and_at_the_end_of_a_step_is_timed(monkeypatch):
    ticks = iter(range(1000))
    monkeypatch.setattr(time, "thread_time", lambda: float(next(ticks)))
    assert overhead.keeping_seconds("digits", has_generators=True) == 2


def test_a_checkpoint_is_written_and_its_size_reported(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(overhead, "NUM_STEPS", 10)
    monkeypatch.setattr(overhead, "NUM_BACKWARD_PASSES", 1)
    monkeypatch.setattr(overhead, "TENSOR_SIZE", 1000)
    assert main(["overhead", "--folder", str(tmp_path)]) == 0
    _, line, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"a checkpoint of 1 MB: training waits \d+ ms for the copy and \d+ ms for the GIL while it is written,"
        r" in \d\.\d\d s",
        line,
    )
    assert last.startswith("a state in memory on CPUs: ")
    assert list(tmp_path.iterdir()) == []
