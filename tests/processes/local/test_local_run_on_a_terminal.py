"""What a person at a terminal sees, through a real pseudo-terminal."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from support.local_command import write_job
from support.terminal import Terminal

# Reports its progress, then waits for a file.
TRAIN = """
import pathlib, time
print("hello from the program", flush=True)
print('ddpjob-progress {"step": 3, "totalSteps": 9, "loss": 0.25, "samplesPerSecond": 100, "etaSeconds": 75, "metrics": {"iou": 0.5}}', flush=True)
deadline = time.monotonic() + 240
while not pathlib.Path("go").exists() and time.monotonic() < deadline:
    time.sleep(0.05)
"""


def started(folder: Path, *, columns: int = 160, **environ: str) -> Terminal:
    (folder / "train.py").write_text(TRAIN)
    file = write_job(folder, {"command": ["python", "train.py"]})
    return Terminal("run", "--local", str(file), folder=folder, columns=columns, environ=environ)


def test_the_bar_follows_the_progress_of_the_status_while_the_job_runs(tmp_path: Path) -> None:
    with started(tmp_path) as terminal:
        terminal.read_until("step 3/9 (33%) · loss 0.25 · iou 0.5 · 100 samples/s · ETA 1m15s")
        assert terminal.process.poll() is None
        (tmp_path / "go").touch()
        terminal.read_until("")
        assert terminal.process.wait(timeout=240) == 0
    shown = terminal.screen.text
    assert shown.count("[rank 0] hello from the program") == 1
    assert "ddpjob-progress" not in shown
    assert "status:" not in shown, "the whole status is shown with -o yaml only"
    assert "━" not in shown, "nothing is left of the bar"
    summary = [line for line in shown.splitlines() if line.startswith("ddpjob:   ")]
    assert "loss 0.25" in summary[0]
    assert len(summary) <= 8
    assert terminal.seen.rstrip().endswith("\x1b[0m")  # the last line, the outcome, is in colour


def test_nothing_is_left_of_the_bar_on_a_narrow_terminal(tmp_path: Path) -> None:
    with started(tmp_path, columns=40) as terminal:
        terminal.read_until("step 3/9")
        (tmp_path / "go").touch()
        terminal.read_until("")
    lines = terminal.screen.text.splitlines()
    assert max(map(len, lines)) <= 40
    assert [line for line in lines if "Running ·" in line or "ready" in line] == []


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_lines_are_plain_where_no_color_is_wanted(tmp_path: Path, environ: dict[str, Any]) -> None:
    (tmp_path / "go").touch()
    with started(tmp_path, **environ) as terminal:
        terminal.read_until("")
        assert terminal.process.wait(timeout=240) == 0
    assert "[rank 0] hello from the program" in terminal.seen
    assert "\x1b" not in terminal.seen


def test_ctrl_c_at_the_terminal_stops_the_run(tmp_path: Path) -> None:
    with started(tmp_path) as terminal:
        terminal.read_until("hello from the program")
        os.killpg(terminal.process.pid, signal.SIGINT)  # as the terminal does to its foreground process group
        terminal.read_until("")
        assert terminal.process.wait(timeout=240) == 130
    assert "stopping all ranks, which can save their work first" in terminal.seen
    assert "SIGINT ended the run, and none of its processes is left" in terminal.seen
    assert "Start the same command again; it continues from the newest checkpoint if" in terminal.seen
    assert "KeyboardInterrupt" not in terminal.seen
