"""Options and figures in the form that people read and write."""

import io
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from ddpjob.client.jobs import Job, read_job
from ddpjob_cli.output import indented, print_screen
from ddpjob_cli.rendering import (
    attempt_lines,
    facts,
    next_command,
    no_status,
    number,
    parse_ranks,
    parse_seconds,
    restarts_so_far,
    scheduling,
    summary,
)
from ddpjob_cli.training_lines import TrainingLines
from ddpjob_operator.api.status import DDPJobStatus, Progress


@pytest.mark.parametrize(
    ("value", "text"), [(0.0947641954, "0.0948"), (2.25, "2.25"), (12345.6, "12,300"), (98.0, "98"), (None, "-")]
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_the_headline_is_among_the_facts_and_several_metrics_have_a_line() -> None:
    progress = Progress(step=5, loss=0.25, headline="accuracy 99.72 %", metrics={"accuracy": 99.72, "val/loss": 0.01})
    assert facts(progress) == ["step 5", "loss 0.25", "accuracy 99.72 %"]
    assert summary(DDPJobStatus(progress=progress)) == [
        ("training", "step 5 · loss 0.25 · accuracy 99.72 %"),
        ("metrics", "accuracy 99.72 · val/loss 0.01"),
    ]
    assert len(summary(DDPJobStatus(progress=progress.model_copy(update={"metrics": {"accuracy": 99.72}})))) == 1


def test_a_finished_job_has_no_time_left() -> None:
    progress = Progress(step=5, eta="0s")
    assert facts(progress, finished=True) == ["step 5"]
    assert facts(progress) == ["step 5", "ETA 0s"]


def job(spec: dict[str, Any], **status: Any) -> Job:
    return read_job({"metadata": {"name": "net", "namespace": "team-a"}, "spec": spec, "status": status})


def test_a_job_without_a_status_needs_the_controller_that_runs_it() -> None:
    new, sent = job({"command": ["x"]}), job({"command": ["x"], "managedBy": "kueue.x-k8s.io/multikueue"})
    assert next_command(new) == "ddpjob doctor -n team-a"
    assert no_status(new) == "the operator has not acted on it yet"
    assert next_command(sent) == "ddpjob events net -n team-a"
    assert "kueue.x-k8s.io/multikueue runs this job (spec.managedBy)" in no_status(sent)


def test_restarts_within_an_attempt_are_shown() -> None:
    lost = {
        "attempt": 1,
        "rank": 1,
        "node": "a",
        "reason": "NodeLost",
        "replaced": True,
        "time": "2026-11-23T08:00:00Z",
    }
    shown = job(
        {"command": ["x"]},
        phase="Running",
        restarts={"counted": 2, "infrastructure": 1, "podReplacements": 1},
        progress={"step": 7, "inPlaceRestarts": 3},
        attempts=[lost],
        attemptStartTime="2026-11-23T07:00:00Z",
    )
    so_far = "2 counted, 1 by the cluster, 3 in place in this attempt, 1 of these only replaced lost pods"
    assert restarts_so_far(shown.status) == so_far
    assert ("restarts", so_far) in summary(shown.status)
    assert attempt_lines(shown) == [
        "1  2026-11-23T08:00:00Z  NodeLost node rank 1 on a; the pod was replaced and the attempt continued",
        "1  2026-11-23T07:00:00Z  Running",
    ]


@pytest.mark.parametrize(
    ("spec", "status", "text"),
    [
        ({"queueName": "team-a"}, {"scheduling": {"provider": "kueue"}}, "kueue, queue team-a"),
        ({"queueName": "team-a"}, {}, "queue team-a"),
        ({}, {"scheduling": {"provider": "none"}}, ""),
    ],
)
def test_what_schedules_the_pods_is_shown(spec: dict[str, Any], status: dict[str, Any], text: str) -> None:
    assert scheduling(job({"command": ["x"], "scheduling": spec}, **status)) == text


@pytest.mark.parametrize(("text", "ranks"), [(None, None), ("0", {0}), ("0,3-5", {0, 3, 4, 5}), ("7, 2", {2, 7})])
def test_lists_of_ranks(text: str | None, ranks: object) -> None:
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["a", "1-", "5-3", "0,,1", "0-99999"])
def test_a_list_of_ranks_that_makes_no_sense(text: str) -> None:
    with pytest.raises(ValueError, match="give ranks such as 0,3-5"):
        parse_ranks(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [(None, None), ("90", 90), ("90s", 90), ("1h30m", 5400), ("2d", 172800), ("0.5s", 0.5)]
)
def test_spans_of_time(text: str | None, seconds: float | None) -> None:
    assert parse_seconds(text, "--since") == seconds


@pytest.mark.parametrize("text", ["", "m", "5x", "1h2", "1.2.3s", "-5s"])
def test_a_span_of_time_that_makes_no_sense(text: str) -> None:
    with pytest.raises(ValueError, match="--since"):
        parse_seconds(text, "--since")


def test_steps_are_shown_every_few_seconds() -> None:
    now = 0.0
    lines = TrainingLines(verbose=False, clock=lambda: now)
    step = "epoch 0 step 10/345 loss 0.0947641954 data 0.4 ms"
    assert lines.shown(0, step) == "epoch 0 step 10/345 loss 0.0948 data 0.4 ms"
    assert lines.shown(0, step) is None
    assert lines.shown(1, step) is not None, "each rank has its own time"
    now = 3.0
    assert lines.shown(0, step) is not None
    assert lines.shown(0, "after 23 steps: accuracy 50.97 % (183 of 359)") is not None
    cpp_stack = (
        "Exception raised from recvBytes at /pytorch/torch/csrc/distributed/c10d/Utils.hpp:786 (most recent call first):",
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7f0e in /opt/libc10.so)",
        "<omitting python frames>",
    )
    assert [lines.shown(0, line) for line in cpp_stack] == [None, None, None]
    assert lines.shown(0, "my own loss 0.123456789") == "my own loss 0.123456789"
    session = "step 200/200 loss 5.90860694e-13 val/iou 0.123456789"
    assert [lines.shown(0, session)] * 2 == ["step 200/200 loss 5.91e-13 val/iou 0.123"] * 2
    assert lines.shown(0, "step 7/9 at 0.123456789 s") == "step 7/9 at 0.123456789 s"
    assert lines.shown(0, 'ddpjob-progress {"step": 1}') is None
    assert lines.shown(0, 'config {"recipe":"digits","epochs":15}') is None, "the manifest shows the settings"
    assert TrainingLines(verbose=True).shown(0, step) == step


def test_a_table_for_another_program_has_no_blanks_at_the_end_of_lines(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("NAME")
    table.add_column("STATE")
    table.add_row("digits", "Running")
    table.add_row("longer-name", "-")
    print_screen(table)
    assert capsys.readouterr().out == "NAME         STATE\ndigits       Running\nlonger-name  -\n"


def test_a_line_that_the_terminal_breaks_stays_to_the_right_of_its_title() -> None:
    narrow = Console(width=20, file=io.StringIO(), markup=False, highlight=False)
    with narrow.capture() as text:
        narrow.print(indented("rank 1 on node-a ended: [b]"))
    assert [line.rstrip() for line in text.get().splitlines()] == ["  rank 1 on node-a", "  ended: [b]"]
