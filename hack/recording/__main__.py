"""Records commands of the README on the cluster of KUBECONFIG: `python -m recording docs/images/recording.svg`.

It needs the operator on that cluster, and `ddpjob` and `kubectl` on PATH. What the picture shows is the output of the real
commands; only the typing is made up, pauses are shortened, and the time runs five times as fast.
"""

import argparse
import codecs
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

from recording.svg import Screen, svg
from support.screen import Terminal

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
    _run("ddpjob", "wait", "own-model", "--for", "failed", "--timeout", "120s")
    frames, seconds = recorded()
    file.write_text(svg(frames, seconds, "ddpjob: output of real commands, at five times the speed"), encoding="utf-8")
    print(f"{file}: {len(frames)} screens, {seconds:.0f} s, {file.stat().st_size / 1000:.0f} KB")


def recorded() -> tuple[list[tuple[float, Screen]], float]:
    """The screens of all commands with their times, and when the picture ends."""
    terminal = Terminal(COLUMNS, ROWS)
    now = 0.0
    frames: list[tuple[float, Screen]] = [(0.0, terminal.snapshot())]

    def show(text: str) -> None:
        terminal.write(text)
        screen = terminal.snapshot()
        if screen == frames[-1][1]:
            return
        if now - frames[-1][0] < FRAME and len(frames) > 1:
            frames[-1] = (frames[-1][0], screen)
        else:
            frames.append((round(now, 2), screen))

    for command in COMMANDS:
        terminal.write("\x1b[2J\x1b[1;32m$\x1b[0m ")
        for key in command:
            now += KEY
            show(key)
        now += 10 * KEY
        terminal.write("\r\n")
        for pause, output in _outputs(command):
            now += min(pause / SPEED, LONGEST_PAUSE)
            show(output)
        now += AFTER_COMMAND
    return frames, now + AFTER_COMMAND


def _outputs(command: str) -> Iterator[tuple[float, str]]:
    """What a command writes to a terminal, each part with the seconds since the one before.

    Raises:
        TimeoutError: it runs longer than TIMEOUT_SECONDS.
    """
    terminal, side_of_program = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    program = subprocess.Popen(
        ["sh", "-c", command],
        cwd=EXAMPLES,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)},
        stdin=side_of_program,
        stdout=side_of_program,
        stderr=side_of_program,
        start_new_session=True,
    )
    os.close(side_of_program)
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    last, deadline = time.monotonic(), time.monotonic() + TIMEOUT_SECONDS
    while True:
        if not select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0]:
            program.kill()
            raise TimeoutError(f"{command} did not end in {TIMEOUT_SECONDS} s")
        try:
            output = os.read(terminal, 1 << 16)
        except OSError:  # the end of a pseudo-terminal
            output = b""
        if not output:
            break
        yield time.monotonic() - last, decode(output)
        last = time.monotonic()
    os.close(terminal)
    program.wait(timeout=TIMEOUT_SECONDS)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=TIMEOUT_SECONDS)


if __name__ == "__main__":
    main()
