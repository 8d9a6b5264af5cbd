"""The values of all attempts of a run, from what rank 0 wrote of each."""

import io
import json
from pathlib import Path

import pytest

from ddpjob_ranks import contract
from ddpjob_ranks.watch import evidence, history
from ddpjob_ranks.watch.timeline import Timeline
from ddpjob_session.observers import Recorder
from ddpjob_session.report import Reporter


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of 30 steps whose first attempt was killed after step 14, in the middle of a line; its checkpoint is of step 10."""
    for attempt, first, last in ((1, 0, 14), (2, 10, 30)):
        monkeypatch.setenv(contract.DDPJOB_ATTEMPT, str(attempt))
        with Reporter(enabled=True, out=io.StringIO()) as report:
            report.watch([Recorder(tmp_path)])
            report.begin(step=first, total_steps=30, steps_per_epoch=10, checkpoint_step=first or None)
            for step in range(first + 1, last + 1):
                report.step_done(step, num_samples=8)
                report.log(loss=3 / step, data_seconds=1, compute_seconds=1)
                if step % 10 == 0:
                    report.saved(step)
                    accuracy = {"accuracy": 100 * step / 30}
                    report.evaluated(accuracy, {"accuracy": "accuracy"}, headline="accuracy", num_samples=30)
    with (tmp_path / history.file_name(1)).open("a") as lines:
        lines.write('{"step": 15, "values": {"lo')
    return tmp_path


def test_the_history_has_what_each_attempt_reported(folder: Path) -> None:
    first, second = history.read(folder)
    assert (first["attempt"], first["first_step"]) == (1, 0)
    assert (second["attempt"], second["first_step"]) == (2, 10)
    assert first["curves"]["loss"][-1] == [14, 3 / 14]
    assert [step for step, _ in second["curves"]["loss"]] == list(range(11, 31))
    assert [value for _, value in second["curves"]["checkpoint_step"]] == [20, 30]
    assert second["curves"]["accuracy"] == [[20, pytest.approx(66.67, abs=0.01)], [30, 100]]


@pytest.mark.parametrize("number", [1, 2, 399, 401, 800, 12_345])
def test_a_long_curve_is_thinned_and_keeps_its_last_point(number: int, tmp_path: Path) -> None:
    lines = [{"first_step": 0}, *({"step": step, "values": {"loss": 0.5}} for step in range(number))]
    (tmp_path / history.file_name(1)).write_text("\n".join(map(json.dumps, lines)))
    steps = [step for step, _ in history.read(tmp_path)[0]["curves"]["loss"]]
    assert min(number, history.POINTS) <= len(steps) <= 2 * history.POINTS
    assert (steps[0], steps[-1]) == (0, number - 1)


def test_an_evidence_file_has_the_history_of_all_attempts(folder: Path) -> None:
    written = evidence.write(Timeline(), {contract.DDPJOB_EVENTS_DIR: str(folder), contract.DDPJOB_ATTEMPT: "2"})
    assert written is not None
    assert json.loads(written.read_text())["history"] == history.read(folder)


@pytest.mark.parametrize(
    "text",
    [
        "5",
        "[]",
        '{"a": 1}',
        '{"step": 1, "values": []}',
        '{"step": 1, "values": {"loss": "x"}}',
        "[" * 100000,
        '{"step": 1, "values": {"loss": 1e999}}',
        '{"first_step": []}',
        "1" * 2 * history.MAX_LINE,
        "1" * 5000,
    ],
)
def test_lines_of_somebody_else_do_not_end_the_training(folder: Path, text: str) -> None:
    before = history.read(folder)
    (folder / history.file_name(2)).open("a").write(text + "\n")
    assert history.read(folder) == before


def test_of_a_file_that_seems_to_be_endless_the_beginning_is_read(folder: Path) -> None:
    before = history.read(folder)
    with (folder / history.file_name(3)).open("w") as sparse:
        sparse.truncate(2**43)
    assert history.read(folder) == before
