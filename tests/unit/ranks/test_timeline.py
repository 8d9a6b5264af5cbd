"""Where the time of a training goes: marks and spans, timed steps, and the report of what limits the speed."""

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ddpjob_ranks.watch import evidence, limiter
from ddpjob_ranks.watch.limiter import Part
from ddpjob_ranks.watch.step_timer import StepTimer
from ddpjob_ranks.watch.timeline import STEP_PHASES, Phase, Timeline, open_events
from support.devices import on_each_device

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    """A list with one element: the monotonic time in seconds, set by hand."""
    now = [100.0]
    monkeypatch.setattr("ddpjob_ranks.watch.timeline.time.monotonic", lambda: now[0])
    monkeypatch.setattr("ddpjob_ranks.watch.timeline.time.time", lambda: 5000 + now[0])
    return now


def stepped(timeline: Timeline, clock: list[float], step: int, *, timer: StepTimer | None = None) -> None:
    """One step of 10 s: agree 1, data 2, forward 3, backward 2.5, optimizer 1, log 0.5."""
    for phase, seconds in zip(STEP_PHASES, (1, 2, 3, 2.5, 1, 0, 0.5), strict=True):
        (timer or timeline).enter(phase)
        clock[0] += seconds
    timeline.step_done(step, num_samples=64)


def test_phases_are_spans_and_steps_are_one_span_an_interval(clock):
    file = io.StringIO()
    timeline = Timeline(file, rank=3)
    clock[0] += 5.00000049
    timeline.enter(Phase.LOAD)
    clock[0] += 7
    timeline.begin_training(step=0)
    for step in (1, 2, 3):
        stepped(timeline, clock, step)
    timeline.flush()
    spans = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [(span["span"], span["seconds"], span["step"]) for span in spans] == [
        ("start", 5.0, 0),  # to the microsecond
        ("data", 7, 0),
        ("first_step", 10, 1),
        ("steps", 20, 3),
    ]
    assert {span["rank"] for span in spans} == {3}
    assert (spans[-1]["num_steps"], spans[-1]["num_samples"], spans[-1]["host_seconds"]["forward"]) == (2, 128, 6)
    assert [span["unix_seconds"] for span in spans] == [5100, 5105, 5112, 5122]


def test_the_first_step_is_not_in_the_shares(clock):
    timeline = Timeline()
    timeline.begin_training(step=7)
    stepped(timeline, clock, 8)
    assert (timeline.num_steps, sum(timeline.seconds.values())) == (0, 0)
    stepped(timeline, clock, 9)
    timeline.flush()
    assert (timeline.num_steps, sum(timeline.seconds.values())) == (1, 10)


def test_exposed_communication_is_what_follows_the_last_gradient():
    seen = []
    timer = StepTimer(CPU, exact=True, now=lambda: seen.append("moment") or time.monotonic())

    class WaitsAtTheEnd(torch.autograd.Function):
        """Queues what DDP would: a wait that comes when the pass is over."""

        @staticmethod
        def forward(_, values):
            return values.clone()

        @staticmethod
        def backward(_, gradient):
            seen.append("gradient")
            queue = torch.autograd.Variable._execution_engine.queue_callback
            queue(lambda: seen.append("wait"))
            return gradient

    timer.enter(Phase.BACKWARD)
    loss = WaitsAtTheEnd.apply(torch.ones(2, requires_grad=True)).sum()
    timer.watch_gradients(loss)
    loss.backward()
    timer.enter(Phase.OPTIMIZER)
    timer.enter(Phase.LOG)
    assert seen == ["moment", "gradient", "moment", "wait", "moment", "moment"]
    assert 0 < timer.exposed_seconds < timer.seconds()[Phase.BACKWARD]


@on_each_device
def test_the_device_times_the_phases_of_a_step(device):
    timer, values = StepTimer(device, exact=True), torch.ones(1000, 1000, device=device)
    for phase in STEP_PHASES:
        timer.enter(phase)
        values = values @ values / 1000
    timed = timer.seconds()
    assert list(timed) == list(STEP_PHASES[:-1])
    assert all(seconds > 0 for seconds in timed.values())


def test_phases_that_come_once_for_each_part_of_a_batch_are_summed():
    timer = StepTimer(CPU, exact=True, now=iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0]).__next__)
    for phase in (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        timer.enter(phase)
    assert timer.seconds() == {Phase.DATA: 1, Phase.FORWARD: 2 + 4, Phase.BACKWARD: 3 + 5}


def test_a_step_that_is_not_timed_is_not_watched():
    timer = StepTimer(CPU, exact=False, now=lambda: pytest.fail("a moment is noted"))
    loss = torch.ones((), requires_grad=True) * 2
    timer.enter(Phase.BACKWARD)
    timer.watch_gradients(loss)
    loss.backward()
    assert (timer.exposed_seconds, timer.seconds()) == (0.0, {})


def rank(**seconds: float) -> dict[str, float]:
    return {**dict.fromkeys((*STEP_PHASES, "exposed", "rest", Phase.CHECKPOINT, Phase.EVALUATE), 0.0), **seconds}


def test_what_a_rank_waits_beyond_the_fastest_transfer_is_waiting_for_the_slowest():
    ranks = [rank(forward=50, backward=50, exposed=40), rank(forward=80, backward=20, exposed=10)]
    parts = limiter.shares(ranks)
    assert parts[Part.COMMUNICATION] == pytest.approx(0.10)
    assert parts[Part.WAITING] == pytest.approx(0.15)
    assert parts[Part.COMPUTE] == pytest.approx(0.75)
    assert "make the ranks equally fast: rank 1 is the slowest (up to 15 % faster)" in limiter.report(ranks)


def test_waiting_for_the_rank_that_saves_is_stall_of_the_checkpoint():
    parts = limiter.shares([rank(forward=80, checkpoint=20), rank(forward=80, backward=20, exposed=15)])
    assert parts[Part.CHECKPOINT] == pytest.approx(0.20)
    assert parts[Part.WAITING] == 0
    assert parts[Part.COMPUTE] == pytest.approx(0.80)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ({"data": 30, "forward": 70}, "raise dataWorkers (of map-style data sets), or make samples cheaper (packed files, smaller images) (up to 30 % faster)"),
        ({"backward": 100, "exposed": 40}, "set gradientCompression to bf16, or double globalBatchSize (up to 20 % faster)"),
        ({"forward": 60, "optimizer": 40}, "half as many updates (up to 20 % faster)"),
        ({"forward": 80, "checkpoint": 20}, "save half as often (checkpointEverySteps), or to a faster volume (up to 10 % faster)"),
        ({"forward": 70, "log": 30}, "(up to 15 % faster)"),
        ({"forward": 80, "data": 4, "evaluate": 16}, "twice as many ranks; nothing else limits it (up to 50 % faster)"),
    ],
)  # fmt: skip
def test_the_one_change_is_the_one_that_gains_most(seconds, text):
    assert text in limiter.report([rank(**seconds)])


def test_shares_of_a_real_timeline_sum_to_one(clock):
    timeline = Timeline()
    timeline.begin_training(step=0)
    stepped(timeline, clock, 1)
    timer = StepTimer(CPU, exact=True, timeline=timeline)
    stepped(timeline, clock, 2, timer=timer)
    timeline.sample(timer.seconds(), timer.exposed_seconds)
    timeline.enter(Phase.EVALUATE)
    clock[0] += 10
    timeline.enter(Phase.AGREE)
    timeline.flush()
    parts = limiter.shares([limiter.spent(timeline, CPU)])
    assert sum(parts.values()) == pytest.approx(1)
    assert parts[Part.EVALUATION] == pytest.approx(0.5)
    assert parts[Part.COMPUTE] == pytest.approx(5.5 / 20)


def test_no_folder_no_events_and_an_attempt_has_its_own_file(tmp_path):
    assert open_events({}, rank=0) is None
    file = open_events({"DDPJOB_EVENTS_DIR": str(tmp_path / "new"), "DDPJOB_ATTEMPT": "3"}, rank=2)
    with file:
        assert file.name == str(tmp_path / "new/attempt-3-rank-2.jsonl")


def test_a_folder_that_cannot_be_written_is_reported_and_stops_nothing(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.touch()
    environ = {"DDPJOB_EVENTS_DIR": str(blocked / "folder")}
    assert open_events(environ, rank=0) is None
    assert evidence.write(Timeline(), environ) is None
    assert "cannot be written (Not a directory); no more spans are recorded" in capsys.readouterr().err


def test_a_disk_that_is_full_ends_the_spans_and_nothing_else(capsys):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        timeline = Timeline(full)
        timeline.enter(Phase.LOAD)
        timeline.enter(Phase.SETUP)
        timeline.enter(Phase.LOAD)
        assert capsys.readouterr().err.count("No space left on device") == 1
        with contextlib.suppress(OSError):
            full.close()  # what is left in its buffer


def test_the_start_of_a_process_is_known_to_a_clock_tick():
    code = "from ddpjob_ranks.watch.timeline import process_began; print(process_began())"
    before = time.monotonic()
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path)},
        timeout=60,
        capture_output=True,
        check=True,
    ).stdout
    began, tick_seconds = float(printed), 1 / os.sysconf("SC_CLK_TCK")
    assert before - tick_seconds <= began <= time.monotonic()
