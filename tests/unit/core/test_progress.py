"""Progress lines of programs: what of them is valid, and what reaches the status."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from ddpjob_operator.api.names import contract
from ddpjob_operator.core.progress import latest_progress, position
from ddpjob_session.progress import Progress

GOOD = 'ddpjob-progress {"step": 12, "totalSteps": 40, "epoch": 1, "loss": 0.123456, "etaSeconds": 200.4}'


def test_the_last_line_counts() -> None:
    progress = latest_progress(f'ddpjob-progress {{"step": 1}}\nnoise\n{GOOD}\nmore noise\n')
    assert (progress.step, progress.total_steps, progress.loss) == (12, 40, 0.1235)
    assert (progress.eta, progress.eta_seconds) == ("3m20s", 200)


@pytest.mark.parametrize("prefix", ["[rank0]: ", "[default0]:", "[default0]: "])
def test_a_launchers_prefix_is_allowed(prefix) -> None:
    assert latest_progress(prefix + GOOD) is not None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "failed to try resolving symlinks in path /var/log/pods: no such file or directory",
        "ddpjob-progress",
        "ddpjob-progress {",
        'ddpjob-progress {"step": 12',
        "ddpjob-progress []",
        "ddpjob-progress {}",
        'ddpjob-progress {"step": "12"}',
        'ddpjob-progress {"step": -1}',
        'ddpjob-progress {"step": 1e400}',
        'ddpjob-progress {"step": 99999999999999999999}',
        'ddpjob-progress {"step": 1, "x": "' + "y" * 2000 + '"}',
        "ddpjob-progress " + '{"step":' * 900 + "1" + "}" * 900,
    ],
)
def test_a_line_that_is_not_of_the_contract_is_ignored(line) -> None:
    assert latest_progress(line) is None


@pytest.mark.parametrize(
    ("rest", "unreadable"),
    [
        ('"loss": NaN', "loss is not finite"),
        ('"loss": -Infinity', "loss is not finite"),
        ('"loss": "0.5"', "loss is '0.5', which is not a number that it may be"),
        ('"loss": 1.7976931348623157e308', "loss is '1.7976931348623157e+308', which is not a number that it may be"),
        ('"etaSeconds": NaN', "etaSeconds is not finite"),
        ('"totalSteps": "40"', "totalSteps is '40', which is not a number that it may be"),
        ('"checkpointStep": [1]', "checkpointStep is '[1]', which is not a number that it may be"),
        ('"epoch": 0.31', None),
        ('"phase": "\\u001b[2J"', None),
        ('"phase": 3, "metrics": 4, "headline": 5', None),
    ],
)
def test_a_bad_optional_field_does_not_keep_the_step_from_moving(rest: str, unreadable: str | None) -> None:
    progress = latest_progress(f'ddpjob-progress {{"step": 7.0, {rest}}}')
    assert (progress.step, progress.unreadable) == (7, unreadable)


@pytest.mark.parametrize("behind", ["[rank1]: x", " {", "}", "ddpjob-progress", "y" * 5000])
def test_text_behind_the_object_is_ignored_and_not_the_line(behind: str) -> None:
    assert latest_progress(GOOD + behind + "\n").step == 12


def test_the_line_before_a_cut_line_counts() -> None:
    progress = latest_progress(GOOD + '\nddpjob-progress {"step": 99, "lo')
    assert progress.step == 12


@pytest.mark.parametrize(("shown", "known"), [("3", 3), ("-1", None), ('"3"', None), ("null", None)])
def test_the_number_of_new_pods_that_have_joined_is_a_number(shown, known) -> None:
    progress = latest_progress(f'ddpjob-progress {{"step": 1, "joinedReplacements": {shown}}}')
    assert (progress and progress.joined_replacements) == known


class Log(str):
    """A log that counts the characters of the parts that are taken from it."""

    num_taken = 0

    def __getitem__(self, key):
        part = super().__getitem__(key)
        self.num_taken += len(part)
        return part


@pytest.mark.parametrize("end", ["\n", ""], ids=["lines", "one line"])
def test_of_a_megabyte_of_bad_lines_few_short_ones_are_parsed(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    parsed: list[str] = []

    def raw_decode(text: str) -> tuple[dict[str, Any], int]:
        parsed.append(text)
        return {}, 0

    monkeypatch.setattr("ddpjob_operator.core.progress._DECODER", SimpleNamespace(raw_decode=raw_decode))
    log = Log(('ddpjob-progress {"step": x}' + end) * 40_000 + "ddpjob-progress " + "{" * 2000)
    assert latest_progress(log) is None
    assert len(parsed) <= 50
    assert max(map(len, parsed), default=0) <= contract.PROGRESS_MAX_BYTES
    assert 0 < log.num_taken <= 50 * (contract.PROGRESS_MAX_BYTES + 1)


def test_a_line_behind_a_progress_bar_is_read() -> None:
    """A bar does not end in a newline, so the next line is appended to it."""
    assert latest_progress(' 50%|#####     | 5/10ddpjob-progress {"step": 5}\n').step == 5


def line_with(**fields: object) -> str:
    return contract.PROGRESS_PREFIX + json.dumps({"step": 1, **fields})


@pytest.mark.parametrize(
    ("metrics", "kept"),
    [
        ({"accuracy": 99.7213, "val/top-5.acc": 1}, {"accuracy": 99.72, "val/top-5.acc": 1.0}),
        ({"": 1, "a b": 1, "\x1b[2J": 1, "a\n": 1, "1a": 1, "a" * 25: 1, "ä": 1, "ok": 0}, {"ok": 0.0}),
        ({"a": "1", "b": True, "c": None, "d": [1], "e": {"f": 1}, "g": 10**400, "h": -1e301, "ok": 1}, {"ok": 1.0}),
        ({"a": float("nan"), "b": float("inf")}, None),
        ({f"m{i}": i for i in range(40)}, {f"m{i}": i for i in range(16)}),
        ([1, 2], None),
        ("accuracy", None),
    ],
)
def test_only_valid_metrics_are_kept_and_the_rest_of_the_line_counts(metrics, kept) -> None:
    progress = latest_progress(line_with(metrics=metrics))
    assert (progress.step, progress.metrics) == (1, kept)


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"headline": "accuracy 99.72 %", "metrics": {"top5": 1}}, "accuracy 99.72 %"),
        ({"metrics": {"top5": 0.93456, "accuracy": 1}}, "top5 0.9346"),
        ({"headline": "\x1b]0;title\x07", "metrics": {"top5": 1}}, "top5 1"),
        *(({"headline": text}, None) for text in ["", " a", "a\n", "a" * 41, "\u202eaccuracy", 7]),
        ({}, None),
    ],
)
def test_the_headline_is_plain_short_text(fields, shown) -> None:
    assert latest_progress(line_with(**fields)).headline == shown


def test_an_operator_that_knows_no_metrics_reads_the_lines_of_a_trainer_that_has_some() -> None:
    """Such an operator drops fields that it does not know, and lines of more than 1,024 bytes."""
    line = Progress(
        step=2**53,
        total_steps=2**53,
        epoch=2**53,
        phase=contract.PHASE_CHECKPOINT,
        alive=2**53,
        loss=-1.234567e-300,
        samples_per_second=1.234567e299,
        eta_seconds=9.87654321e9,
        checkpoint_step=2**53,
        metrics={f"m{i:02}".ljust(24, "x"): -1.23456789e-300 for i in range(contract.MAX_METRICS)},
        headline="h" * 40,
    ).line()
    assert len(line) <= 1024
    assert len(latest_progress(line).metrics) == contract.MAX_METRICS
    assert latest_progress(line_with(of_a_later_release={"a": 1})).step == 1


CAUSE = "rank 1 was killed by SIGKILL at step 345"


@pytest.mark.parametrize(
    ("sent", "kept"), [(CAUSE, CAUSE), (CAUSE + "\x1b[2J", None), ("x" * 81, None), (7, None), (["rank 1"], None)]
)
def test_the_cause_of_a_restart_in_place_is_short_printable_text_or_none(sent, kept) -> None:
    progress = latest_progress("ddpjob-progress " + json.dumps({"step": 1, "inPlaceCause": sent}))
    assert (progress.step, progress.in_place_cause) == (1, kept)


@pytest.mark.parametrize(
    ("first", "second", "is_progress"),
    [
        ({"alive": 1}, {"alive": 2}, True),
        ({"phase": "train"}, {"phase": "evaluate"}, True),
        ({"loss": 1.0}, {"loss": 2.0}, False),
    ],
)
def test_a_step_a_phase_or_a_sign_of_life_is_progress(first, second, is_progress: bool) -> None:
    before, after = (latest_progress(line_with(**fields)) for fields in (first, second))
    assert (position(before) != position(after)) == is_progress
