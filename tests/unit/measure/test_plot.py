"""The picture of a run is drawn from its evidence alone."""

import io
import json
from pathlib import Path

import pytest

from ddpjob_measure.__main__ import main
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
def test_a_long_curve_is_thinned_and_keeps_its_last_point(number: int) -> None:
    thin = history._thinned([[step, 0.5] for step in range(number)])
    assert len(thin) == min(number, len(thin)) <= 2 * history.POINTS + 1
    assert thin[-1] == [number - 1, 0.5]


def test_a_folder_and_an_evidence_file_alone_give_a_picture(folder: Path) -> None:
    written = evidence.write(Timeline(), {contract.DDPJOB_EVENTS_DIR: str(folder), contract.DDPJOB_ATTEMPT: "2"})
    assert written is not None
    assert json.loads(written.read_text())["history"] == history.read(folder)
    assert main(["plot", str(folder), "--output", str(folder / "folder.png")]) == 0
    for path in folder.glob("*.jsonl"):
        path.unlink()
    assert main(["plot", str(written), "--output", str(folder / "file.png")]) == 0
    assert (folder / "folder.png").read_bytes()[:4] == (folder / "file.png").read_bytes()[:4] == b"\x89PNG"


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text("{}")
    for path in (tmp_path / "missing", tmp_path / "a.json", tmp_path):
        assert main(["plot", str(path)]) == contract.EXIT_BAD_CONFIG
        assert str(path) in capsys.readouterr().err
