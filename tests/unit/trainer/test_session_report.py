"""What rank 0 prints while a training runs."""

import io
import json

import pytest

from ddpjob_ranks import contract
from ddpjob_session.progress import InPlaceRestarts, Progress
from ddpjob_session.report import HEARTBEAT_SECONDS, Reporter
from support.fakes import fake
from support.progress_fields import PROGRESS_FIELDS
from testbed import wait_for


def parsed(line: str) -> dict[str, object]:
    assert line.startswith(contract.PROGRESS_PREFIX)
    return json.loads(line.removeprefix(contract.PROGRESS_PREFIX))


def progress_of(out: io.StringIO) -> list[dict[str, object]]:
    return [parsed(line) for line in out.getvalue().splitlines() if line.startswith(contract.PROGRESS_PREFIX)]


def reporting(**settings) -> tuple[Reporter, io.StringIO]:
    out = io.StringIO()
    reporter = Reporter(enabled=True, out=out, **settings)
    reporter.begin(step=0, total_steps=20, steps_per_epoch=5, checkpoint_step=None)
    return reporter, out


def test_a_full_line_has_every_field():
    fields = parsed(
        Progress(
            step=120,
            total_steps=345,
            epoch=5,
            phase=contract.PHASE_TRAIN,
            alive=7,
            loss=0.25,
            samples_per_second=1234.56,
            eta_seconds=12.34,
            checkpoint_step=115,
            restarts=InPlaceRestarts(number=2, cause="rank 1 was killed by SIGKILL at step 110", joined_replacements=3),
            metrics={"accuracy": 99.7},
            headline="accuracy 99.70 %",
        ).line()
    )
    assert set(fields) == PROGRESS_FIELDS
    assert fields[contract.PROGRESS_STEP] == 120
    assert fields[contract.PROGRESS_SAMPLES_PER_SECOND] == 1234.6


@pytest.mark.parametrize("job", ["", "digits"])
def test_a_persons_terminal_has_no_progress_lines_but_that_of_a_job_has(job, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    if job:
        monkeypatch.setenv(contract.DDPJOB_NAME, job)
    out = Terminal()
    with Reporter(enabled=True, out=out) as reporter:
        reporter.begin(step=0, total_steps=20, steps_per_epoch=5, checkpoint_step=None)
        reporter.say("for people")
        reporter.end()
    assert "for people" in out.getvalue()
    assert bool(progress_of(out)) == bool(job)


def test_an_object_in_the_place_of_stdout_needs_no_more_than_write_and_flush():
    lines: list[str] = []
    out = fake(write=lines.append, flush=lambda: None)
    with Reporter(enabled=True, out=out) as reporter:
        reporter.begin(step=0, total_steps=20, steps_per_epoch=5, checkpoint_step=None)
    assert lines[0].startswith(contract.PROGRESS_PREFIX)


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf")])
def test_a_loss_that_json_cannot_represent_is_left_out(loss):
    line = Progress(step=0, total_steps=1, epoch=0, phase=contract.PHASE_START, loss=loss).line()
    assert contract.PROGRESS_LOSS not in parsed(line)


def test_the_metrics_of_the_last_evaluation_stay_in_the_lines():
    reporter, out = reporting()
    with reporter:
        reporter.metrics({"iou": 0.5, "unknown": float("nan")})
        reporter.evaluated(
            {"accuracy": 99.72144}, {"accuracy": "accuracy 99.72 %"}, headline="accuracy", num_samples=359
        )
        reporter.step_done(1, num_samples=8)
        reporter.end()
    last = progress_of(out)[-1]
    assert last["metrics"] == {"iou": 0.5, "accuracy": 99.7214}
    assert last["headline"] == "accuracy 99.72 %"
    assert reporter.accuracies == {0: pytest.approx(0.9972144)}


@pytest.mark.parametrize(
    ("values", "headline"),
    [({"a b": 1.0}, None), ({f"m{i}": 1.0 for i in range(17)}, None), ({}, "\x1b[2J"), ({}, "a" * 41)],
)
def test_metrics_that_do_not_fit_into_a_line_are_refused(values, headline):
    reporter, _ = reporting()
    with reporter, pytest.raises(ValueError, match=r"metric|headline"):
        reporter.metrics(values, headline=headline)


def test_the_first_line_is_step_0_and_the_last_has_the_phase_done():
    reporter, out = reporting()
    with reporter:
        for step in range(1, 21):
            reporter.step_done(step, num_samples=8)
        reporter.log(loss=0.5, data_seconds=0.001, compute_seconds=0.002)
        reporter.end()
    first, *_, last = progress_of(out)
    assert first == {"step": 0, "totalSteps": 20, "epoch": 0, "phase": "start"}
    assert last["step"] == last["totalSteps"] == 20
    assert (last["epoch"], last["phase"], last["etaSeconds"]) == (3, "done", 0.0)
    assert "total time" in out.getvalue().splitlines()[-1]


def test_a_long_phase_has_heartbeats():
    reporter, out = reporting(heartbeat_seconds=0.05)
    with reporter, reporter.phase(contract.PHASE_EVALUATE):
        wait_for(
            "three heartbeats",
            lambda: len([line for line in progress_of(out) if line["phase"] == "evaluate"]) >= 3,
            seconds=30,
        )
    assert {line["step"] for line in progress_of(out)} == {0}


def test_heartbeats_come_more_often_than_the_contract_asks():
    assert HEARTBEAT_SECONDS < contract.PROGRESS_INTERVAL_SECONDS


def test_the_heartbeat_ends_with_the_reporter():
    reporter, _ = reporting(heartbeat_seconds=0.05)
    with reporter:
        heartbeat = reporter._thread
        assert heartbeat is not None
        assert heartbeat.is_alive()
    assert not heartbeat.is_alive()


def test_other_ranks_print_nothing():
    out = io.StringIO()
    with Reporter(enabled=False, out=out) as reporter:
        reporter.begin(step=0, total_steps=2, steps_per_epoch=1, checkpoint_step=None)
        reporter.step_done(1, num_samples=8)
        reporter.log(loss=0.5, data_seconds=0, compute_seconds=0)
        reporter.end()
    assert out.getvalue() == ""


def test_evaluation_does_not_count_in_samples_per_second(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("ddpjob_session.report.time.monotonic", lambda: now[0])
    reporter = Reporter(enabled=False)
    reporter.begin(step=0, total_steps=10, steps_per_epoch=5, checkpoint_step=None)
    now[0] += 1.0
    reporter.step_done(1, num_samples=50)
    with reporter.phase(contract.PHASE_EVALUATE):
        now[0] += 100.0
    now[0] += 1.0
    reporter.step_done(2, num_samples=50)
    reporter.log(loss=1.0, data_seconds=0, compute_seconds=0)
    assert reporter._current.samples_per_second == 50.0
    assert reporter._current.eta_seconds == 102 / 2 * 8


def test_a_sign_of_life_changes_the_line_within_a_phase_without_steps(monkeypatch):
    monkeypatch.setattr("ddpjob_session.report.MIN_SECONDS_BETWEEN_LINES", 0.0)
    reporter, out = reporting()
    with reporter:
        reporter.keep_alive()
        reporter.keep_alive()
    assert [line.get("alive") for line in progress_of(out)] == [None, 1, 2]
