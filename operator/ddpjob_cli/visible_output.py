"""The only way of this program to standard output and standard error: what a terminal obeys does not get through.

Programs, tenants and files choose much of what a command prints. Whatever prints (print, typer, rich, a traceback) writes to a
stream of this module, so no command has to remember it. Only the colours and cursor movements that rich itself adds remain.
"""

import functools
import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from ddpjob_operator.core.untrusted import visible_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment


class _Enduring:
    """A text stream that drops what it cannot write: its reader has ended, its terminal has gone, its disk is full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._to_nowhere():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._to_nowhere():
            self._stream.flush()

    @contextmanager
    def _to_nowhere(self) -> Iterator[None]:
        try:
            yield
        except OSError:  # what is in the buffer goes there as well, with the next flush
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def output_ends_nothing() -> None:
    """From now on this program outlasts the readers of its output, because a training depends on it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, VisibleStream):
            stream.drop_what_cannot_be_written()


class VisibleStream:
    """A text stream that writes what is visible of each text."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def drop_what_cannot_be_written(self) -> None:
        """Raise no more errors."""
        self._stream = cast("TextIO", _Enduring(self._stream))

    def write(self, text: str) -> int:
        """Write what is visible of the text."""
        self._stream.write(visible_text(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write what is visible of each line."""
        for line in lines:
            self.write(line)

    @property
    def rich_proxied_file(self) -> TextIO:
        """Where rich writes: it puts its own sequences between texts that are visible by then."""
        _make_rich_visible()
        return self._stream

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # the way around
            raise AttributeError(name)
        return getattr(self._stream, name)


@contextmanager
def only_visible_output() -> Iterator[None]:
    """Replace standard output and standard error. After an exception they stay, for the traceback that the interpreter prints.

    A character that the encoding of the stream does not have is printed as an escape sequence of Python.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # whoever started this program has closed it
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # until this program ends
    streams = sys.stdout, sys.stderr
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = (cast("TextIO", VisibleStream(stream)) for stream in streams)
    yield
    sys.stdout, sys.stderr = streams


@functools.cache
def _make_rich_visible() -> None:
    """Every console of rich renders all texts by one method, those of typer's help and of live views included."""
    from rich.console import Console
    from rich.segment import Segment

    render = Console.render

    def visible_render(self: "Console", *args: Any, **options: Any) -> "Iterable[Segment]":
        for segment in render(self, *args, **options):
            shown = segment.text if segment.control else visible_text(segment.text)
            yield segment if shown == segment.text else Segment(shown, segment.style)

    Console.render = visible_render  # type: ignore[method-assign]
