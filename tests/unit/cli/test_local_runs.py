"""The directory of a local run takes the place of a job; processes/local/test_local_run_fails.py shows one of a real run."""

from pathlib import Path

import pytest

from ddpjob_cli.__main__ import main


def run_of(folder: Path, time: str, *logs: str) -> Path:
    """The directory of a run that has not ended."""
    run = folder / f"net-2-{time}"
    (run / "logs").mkdir(parents=True)
    for log in logs:
        (run / "logs" / f"{log}.log").write_text(f"{log} prints\x1b[31m\n", encoding="utf-8")
    return run


def test_a_run_that_has_not_ended_has_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path, "20261123-084053", "net-2-1-0", "net-2-2-0", "net-2-2-1", "net-2-2-1-1")
    assert main(["logs", str(run), "-o", "raw"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()] == ["net-2-2-0", "net-2-2-1", "net-2-2-1-1"]
    assert "\x1b" not in shown
    assert main(["logs", str(run), "--attempt", "1"]) == 0
    assert capsys.readouterr().out.startswith("[r00] net-2-1-0 prints")
    assert main(["status", str(run)]) == 2
    assert (
        "the run has not ended, or was killed. To see what it has printed so far: ddpjob logs"
        in capsys.readouterr().err
    )


def test_the_name_of_a_job_means_its_newest_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_of(tmp_path, "20261123-084053", "net-2-1-0")
    run_of(tmp_path, "20261123-084054", "net-2-3-0")
    run_of(tmp_path, "20261123-084054-2", "net-2-5-0")
    (tmp_path / "net-2-large-20261123-084055/logs").mkdir(parents=True)
    assert main(["logs", str(tmp_path / "net-2"), "-o", "raw"]) == 0
    assert capsys.readouterr().out.split()[0] == "net-2-5-0"
