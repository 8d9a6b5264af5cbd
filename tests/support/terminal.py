"""A command on a real pseudo-terminal, and the screen that a person sees there."""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from support import screen


class Terminal:
    """A `ddpjob` command on a pseudo-terminal, which does not outlive the context."""

    def __init__(
        self,
        *arguments: str,
        folder: Path,
        columns: int = 160,
        rows: int = 50,
        environ: Mapping[str, str] | None = None,
        on_output: Callable[[str], None] = lambda _: None,
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
        self.seen, self._on_output = "", on_output
        self.screen = screen.Terminal(columns, rows)
        self._readable = select.poll()  # `select` takes no descriptor above 1,023
        self._readable.register(self._master, select.POLLIN)

    def read_until(self, text: str, timeout_seconds: float = 240) -> None:
        """Read what appears until `text` is on the screen, or to the end where it is empty."""
        deadline = time.monotonic() + timeout_seconds
        incomplete = ""
        while not text or text not in self.screen.text:
            if not self._readable.poll(1000 * max(0.0, deadline - time.monotonic())):
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
            self.screen.write(new)
            self._on_output(new)

    def hang_up(self) -> None:
        """Close the terminal, as its window does."""
        os.close(self._master)
        self._master = os.open(os.devnull, os.O_RDONLY)
        os.kill(self.process.pid, signal.SIGHUP)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
