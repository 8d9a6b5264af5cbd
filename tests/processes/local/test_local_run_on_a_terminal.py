"""What a person at a terminal sees, through a real pseudo-terminal."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from local_command import write_job

# Tells where it stands, then waits to be told to end.
TRAIN = """
import pathlib, time
print("hello from the program", flush=True)
print('ddpjob-progress {"step": 3, "totalSteps": 9, "loss": 0.25, "samplesPerSecond": 100, "etaSeconds": 75}', flush=True)
deadline = time.monotonic() + 60
while not pathlib.Path("go").exists() and time.monotonic() < deadline:
    time.sleep(0.05)
"""


class Terminal:
    """A command on a pseudo-terminal of 160 columns."""

    def __init__(self, folder: Path, file: Path, **environ: str) -> None:
        self._screen, keyboard = pty.openpty()
        # A dumb TERM or a NO_COLOR around the tests must not decide what they see.
        own = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ddpjob_cli", "run", "--local", str(file)],
            cwd=folder,
            env={**own, "TERM": "xterm-256color", "COLUMNS": "160", **environ},
            stdin=keyboard,
            stdout=keyboard,
            stderr=keyboard,
            start_new_session=True,
        )
        os.close(keyboard)
        self.seen = ""

    def read_until(self, text: str, timeout_seconds: float = 30) -> None:
        """Read what appears until `text` has, or the end where it is empty."""
        deadline = time.monotonic() + timeout_seconds
        while not text or text not in self.seen:
            if not select.select([self._screen], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"waited {timeout_seconds} s for {text!r} on the terminal; it shows {self.seen!r}")
            try:
                self.seen += os.read(self._screen, 65536).decode(errors="replace")
            except OSError:  # the other side is closed
                assert not text, f"{text!r} never came; the terminal shows {self.seen!r}"
                return

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._screen)


def started(folder: Path, **environ: str) -> Terminal:
    (folder / "train.py").write_text(TRAIN)
    return Terminal(folder, write_job(folder, {"command": ["python", "train.py"]}), **environ)


def test_the_bar_follows_the_progress_of_the_status_while_the_job_runs(tmp_path: Path) -> None:
    terminal = started(tmp_path)
    try:
        terminal.read_until("step 3/9 (33%) · loss 0.25 · 100 samples/s · ETA 1m15s")
        assert terminal.process.poll() is None
        (tmp_path / "go").touch()
        terminal.read_until("")
        assert terminal.process.wait(timeout=10) == 0
    finally:
        terminal.close()
    assert "hello from the program" in terminal.seen
    assert "ddpjob-progress" not in terminal.seen
    assert "status:" not in terminal.seen, "the whole status is shown with -o yaml only"
    summary = terminal.seen[terminal.seen.rindex("Succeeded:") :].splitlines()[1:]
    assert "loss 0.25" in summary[0]
    assert len(summary) <= 8
    assert terminal.seen.rstrip().endswith("\x1b[0m")  # the last line, the verdict, is in colour


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_lines_are_plain_where_no_color_is_wanted(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "go").touch()
    terminal = started(tmp_path, **environ)
    try:
        terminal.read_until("")
        assert terminal.process.wait(timeout=10) == 0
    finally:
        terminal.close()
    assert "[rank 0] hello from the program" in terminal.seen
    assert "\x1b" not in terminal.seen


def test_ctrl_c_at_the_terminal_stops_the_run(tmp_path: Path) -> None:
    terminal = started(tmp_path)
    try:
        terminal.read_until("hello from the program")
        os.killpg(terminal.process.pid, signal.SIGINT)  # as the terminal does to its foreground process group
        terminal.read_until("")
        assert terminal.process.wait(timeout=10) == 130
    finally:
        terminal.close()
    assert "stopping all ranks, which can save their work first" in terminal.seen
    assert "KeyboardInterrupt" not in terminal.seen
