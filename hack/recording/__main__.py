"""Records commands of the README on the cluster of KUBECONFIG: `python -m recording docs/images/recording.svg`.

It needs the operator on that cluster, and `kubectl` on PATH. What the picture shows is the output of the real
commands; only the typing is made up, pauses are shortened, and the time runs five times as fast.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from recording.svg import Screen, svg
from support import screen
from support.terminal import Terminal

COLUMNS, ROWS = 116, 28
SPEED = 5.0
#: Seconds of the picture.
LONGEST_PAUSE, KEY, AFTER_COMMAND, FRAME = 1.0, 0.045, 2.5, 0.1
TIMEOUT_SECONDS = 300

EXAMPLES = Path(__file__).resolve().parents[2] / "manifests" / "examples"
#: A job that has failed when the recording begins.
FAILED = Path(__file__).with_name("own-model.yaml")
COMMANDS = ("ddpjob run digits.yaml", "ddpjob plot digits --metric loss", "ddpjob explain own-model")


def main() -> None:
    """Record and write the picture."""
    parser = argparse.ArgumentParser(prog="python -m recording", description="Record the README's picture.")
    parser.add_argument("file", type=Path)
    file = parser.parse_args().file.resolve()
    _run("kubectl", "delete", "ddpjob", "digits", "own-model", "--ignore-not-found")
    _run("kubectl", "apply", "--filename", str(FAILED))
    _run(sys.executable, "-m", "ddpjob_cli", "wait", "own-model", "--for", "failed", "--timeout", "120s")
    frames, seconds = recorded()
    file.write_text(svg(frames, seconds, "ddpjob: output of real commands, at five times the speed"), encoding="utf-8")
    print(f"{file}: {len(frames)} screens, {seconds:.0f} s, {file.stat().st_size / 1000:.0f} KB")


def recorded(commands: Sequence[str] = COMMANDS) -> tuple[list[tuple[float, Screen]], float]:
    """The screens of all commands with their times, and when the picture ends."""
    drawn = screen.Terminal(COLUMNS, ROWS)
    now = last = 0.0
    frames: list[tuple[float, Screen]] = [(0.0, drawn.snapshot())]

    def show(text: str) -> None:
        drawn.write(text)
        shown = drawn.snapshot()
        if shown == frames[-1][1]:
            return
        if now - frames[-1][0] < FRAME and len(frames) > 1:
            frames[-1] = (frames[-1][0], shown)
        else:
            frames.append((round(now, 2), shown))

    def output(text: str) -> None:
        nonlocal now, last
        now += min((time.monotonic() - last) / SPEED, LONGEST_PAUSE)
        last = time.monotonic()
        show(text)

    for command in commands:
        drawn.write("\x1b[2J\x1b[1;32m$\x1b[0m ")
        for key in command:
            now += KEY
            show(key)
        now += 10 * KEY
        drawn.write("\r\n")
        last = time.monotonic()
        arguments = command.split()[1:]
        with Terminal(*arguments, folder=EXAMPLES, columns=COLUMNS, rows=ROWS, on_output=output) as program:
            program.read_until("", TIMEOUT_SECONDS)
        now += AFTER_COMMAND
    return frames, now + AFTER_COMMAND


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=TIMEOUT_SECONDS)


if __name__ == "__main__":
    main()
