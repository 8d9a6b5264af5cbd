"""A command on a real pseudo-terminal, and the screen that a person sees there."""

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path

_TOKEN = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|([^\x1b])", re.DOTALL)


class Screen:
    """The lines of a terminal, including those that have left it at the top. It knows the sequences that rich writes."""

    def __init__(self, columns: int, rows: int) -> None:
        self._columns, self._rows = columns, rows
        self._main: list[list[str]] = [[]]
        self._lines, self._row, self._column = self._main, 0, 0
        self._saved = (0, 0)
        self.used_alternate = False

    @property
    def text(self) -> str:
        """What a person sees and can scroll back to."""
        return "\n".join("".join(line).rstrip() for line in self._lines).rstrip()

    def feed(self, text: str) -> None:
        """Show what a program has written; an unknown sequence is an error."""
        position = 0
        while position < len(text):
            found = _TOKEN.match(text, position)
            assert found, f"unknown sequence {text[position : position + 20]!r}"
            position = found.end()
            if found[3]:
                self._character(found[3])
            else:
                self._sequence(found[1], found[2])

    def _character(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._to(self._row + 1)
            self._column = 0
        elif character.isprintable():
            if self._column == self._columns:
                self._character("\n")
            line = self._lines[self._row]
            line += " " * (self._column + 1 - len(line))
            line[self._column] = character
            self._column += 1

    def _to(self, row: int) -> None:
        self._row = max(row, len(self._lines) - self._rows, 0)
        self._lines += [[] for _ in range(self._row + 1 - len(self._lines))]

    def _sequence(self, parameters: str, final: str) -> None:
        number = int(parameters) if parameters.isdecimal() else 0
        if final == "A":
            self._to(self._row - (number or 1))
        elif final == "H" and not parameters:
            self._row = self._column = 0
        elif final == "K" and number == 2:
            self._lines[self._row].clear()
        elif (parameters, final) in (("?1049", "h"), ("?1049", "l")):
            self._switch(alternate=final == "h")
        else:
            assert final == "m" or (parameters, final) in (("?25", "l"), ("?25", "h")), (parameters, final)

    def _switch(self, *, alternate: bool) -> None:
        self.used_alternate |= alternate
        if alternate:
            self._saved = (self._row, self._column)
            self._lines, self._row, self._column = [[]], 0, 0
        else:
            self._lines = self._main
            self._row, self._column = self._saved


class Terminal:
    """A `ddpjob` command on a pseudo-terminal."""

    def __init__(
        self,
        *arguments: str,
        folder: Path,
        columns: int = 160,
        rows: int = 50,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._master, keyboard = pty.openpty()
        fcntl.ioctl(keyboard, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
        # A dumb TERM or a NO_COLOR around the tests must not decide what they see.
        left_out = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
        own = {name: value for name, value in os.environ.items() if name not in left_out}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ddpjob_cli", *arguments],
            cwd=folder,
            env={**own, "TERM": "xterm-256color", **(environ or {})},
            stdin=keyboard,
            stdout=keyboard,
            stderr=keyboard,
            start_new_session=True,
        )
        os.close(keyboard)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.seen = ""
        self.screen = Screen(columns, rows)

    def read_until(self, text: str, timeout_seconds: float = 60) -> None:
        """Read what appears until `text` is on the screen, or to the end where it is empty."""
        deadline = time.monotonic() + timeout_seconds
        incomplete = ""
        while not text or text not in self.screen.text:
            if not select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"waited {timeout_seconds} s for {text!r}; the terminal shows\n{self.screen.text}")
            try:
                new = incomplete + self._decoder.decode(os.read(self._master, 65536))
            except OSError:  # the other side is closed
                assert not text, f"{text!r} never came; the terminal shows\n{self.screen.text}"
                return
            cut = new.rfind("\x1b")
            complete = cut < 0 or re.match(r"\x1b\[[?0-9;]*[A-Za-z]", new[cut:])
            new, incomplete = (new, "") if complete else (new[:cut], new[cut:])
            self.seen += new
            self.screen.feed(new)

    def close(self) -> None:
        """End the command if it still runs."""
        self.process.kill()
        self.process.wait()
        os.close(self._master)
