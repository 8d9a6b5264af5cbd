"""The exceptions in a piece of a log, in the order in which they were printed.

Python, rich and loguru show tracebacks in different forms, and much of what a process prints while it ends is no cause:
objects that cannot be deleted, atexit functions, other threads, a logger that is closed. All of it is untrusted text. One
pass over the lines finds all exceptions; what is kept of each is short.

Of chained exceptions the outer one is reported, with its cause, if the program raised it on purpose: `raise … from`, or a
`raise` in the function that caught the other one. Any other exception that comes while one is being handled, such as that of
a `finally` block, only follows from it, so the inner one is reported.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddpjob_operator.core.untrusted import printable

#: How a traceback begins; rich writes it into a frame.
TRACEBACK = "Traceback (most recent call last)"
#: What torchrun and the ranks' loggers put before each line of a worker.
_PREFIX = re.compile(r"(?:\[[\w-]+\]:\s?)+")
_RANK_PREFIX = re.compile(r"\[(?:rank|default)\d{1,9}\]:")
#: `Type` or `module.Type: message`, as the interpreter ends a traceback.
_EXCEPTION = re.compile(r"[^\W\d][\w.<>]*(?::(?:\s.*)?)?$")
_FRAME = re.compile(r'(?:> |\s+)File "([^"]*)", line (\d+)(?:, in (.*))?$')
#: A mistake in the syntax of the main script has no traceback, only a place.
_SYNTAX_ERROR = re.compile(r"(?:SyntaxError|IndentationError|TabError): ")
_GROUP_MARGIN = re.compile(r"\s+\| ?")
_GROUP_MEMBER = re.compile(r"\s+\+(?:-\+)?-+ (?:\d+|\.\.\.) -+$")
_GROUP_RULE = re.compile(r"\s+\+-*$")
_IS_GROUP = re.compile(r"\(\d+ sub-exceptions?\)$")
#: What the interpreter and libraries print before a traceback that does not end the process.
_NOISE = (
    "Exception ignored ",
    "Exception in thread ",
    "Error in atexit._run_exitfuncs:",
    "Error in sys.excepthook:",
    "--- Logging error ---",
    "Task exception was never retrieved",
    "Unhandled exception in thread",
)
#: Lines between such a line and its traceback.
_NOISE_LINES = 2
#: Exceptions of a process that only reports the end of a process that it has started.
_REPORTS_ANOTHER_PROCESS = re.compile(r"subprocess\.CalledProcessError\b|\S*\bProcessExitedException\b")
#: Messages of which the first line says too little, and how many further lines belong to them: one after a colon; of pydantic the
#: field and what is wrong with it; of NCCL the code, "Last error:" and this error.
_GOES_ON = (
    (re.compile(r".*:$"), 1),
    (re.compile(r".*\bvalidation errors? for \S+$"), 2),
    (re.compile(r".*\bNCCL version [\d.]+$"), 3),
)
#: Longest piece of a source line that is shown.
_SHOWN_SOURCE = 200
#: A prefix of each line, such as a time or `srun --label`, has the same characters but for its digits.
_DIGITS = str.maketrans("123456789", "0" * 9)
_FROM = "The above exception was the direct cause of the following exception:"
_WHILE_HANDLING = "During handling of the above exception, another exception occurred:"


@dataclass(slots=True, kw_only=True)
class Raised:
    """An exception that a process printed."""

    source: str
    """The prefix of the rank that printed it; empty without one."""
    text: str = ""
    """`Type: message` on one line; empty while it has not been printed."""
    is_noise: bool = False
    """Whether it does not end its process, or only reports the end of another one."""
    then: str = ""
    """An exception that followed while this one was being handled."""


def source_and_text(line: str) -> tuple[str, str]:
    """The prefix of the rank that a line begins with, empty without one, and the line without what torchrun and loggers put before it."""
    prefix, rank = _PREFIX.match(line), _RANK_PREFIX.match(line)
    return rank[0] if rank else "", line[prefix.end() :] if prefix else line


def exceptions(lines: Iterable[str]) -> Sequence[Raised]:
    """The exceptions in these lines, which hold no escape sequences. Tracebacks of several ranks may be interleaved."""
    found: list[Raised] = []
    readers: dict[str, _Reader] = {}
    for line in lines:
        source, bare = source_and_text(line)
        if (
            TRACEBACK in bare and not source and (inner := _PREFIX.search(bare))
        ):  # after a progress bar without a line end
            source, bare = source_and_text(bare[inner.start() :])
        if source not in readers:
            readers[source] = _Reader(source, found)
        readers[source].read(bare)
    return [raised for raised in found if raised.text]


class _Reader:
    """Reads the lines of one source."""

    def __init__(self, source: str, found: list[Raised]) -> None:
        self._source = source
        self._found = found
        self._last: Raised | None = None
        self._is_open = False  # within the frames of a traceback
        self._is_framed = False  # by rich
        self._without_head = False  # of a mistake in the syntax of the main script
        self._in_group = False
        self._has_member = False  # whether the first exception of the group is known
        self._replaces = False  # whether the next exception is the original of the last one
        self._link = ""
        self._noise_lines = 0
        self._column = ""  # what precedes each line of an exception that rich's logging handler wraps
        self._goes_on = 0  # number of further lines that belong to the message
        self._line_prefix = ""  # what something else has put before each line of the traceback, with zeros as digits
        self._is_prefix_sure = False
        self._handler: tuple[str, str] | None = None  # the function that caught the last exception
        self._first_frame: tuple[str, str] | None = None
        self._is_in_handler = False
        self._is_raised_in_handler = False
        self._last_frame = ""
        self._source_line = ""  # of the last frame

    def read(self, line: str) -> None:
        """Read the next line."""
        line = self._without_prefix(line)
        if self._in_group:
            if not line[:1].isspace():
                self._in_group = self._is_open = False
            elif _GROUP_MEMBER.match(line):
                self._is_open = True
                return
            elif _GROUP_RULE.match(line):
                return
            elif margin := _GROUP_MARGIN.match(line):
                line = line[margin.end() :]
        if TRACEBACK in line:
            self._begin(line)
        elif self._is_open:
            self._in_traceback(line)
        elif (frame := _FRAME.match(line)) and frame[3] is None:
            self._begin(line)
            self._without_head = True
        else:
            self._between(line)

    def _without_prefix(self, line: str) -> str:
        """The line without what precedes `Traceback`, if the line after that begins in the same way."""
        length = len(self._line_prefix)
        if length and line[:length].translate(_DIGITS) == self._line_prefix:
            self._is_prefix_sure = True
            return line[length:]
        if not self._is_prefix_sure:
            prefix = line[: max(0, line.find(TRACEBACK))]
            has_text = any(map(str.isalnum, prefix))  # the margin of an exception group has none
            self._line_prefix = prefix.translate(_DIGITS) if has_text else ""
        return line

    def _begin(self, line: str) -> None:
        is_member = self._in_group and self._is_open
        self._is_framed, self._without_head = "─ " + TRACEBACK in line, False
        self._is_open, self._goes_on, self._column = True, 0, ""
        if is_member:
            return
        self._in_group, self._has_member = f"Exception Group {TRACEBACK}" in line, False
        self._replaces = f"Original {TRACEBACK}" in line and self._last is not None
        self._handler, self._first_frame = self._first_frame, None
        self._is_in_handler = self._is_raised_in_handler = False
        self._last_frame = self._source_line = ""

    def _in_traceback(self, line: str) -> None:
        indent = ""
        if self._is_framed:
            indent, line = line[: len(line) - len(line.lstrip())], line.strip()
            if line[:1] in ("│", "╰", "╭", "") or line.startswith("|"):
                return
        if not line or line[0].isspace() or line.startswith("> File "):
            self._in_frames(line)
            return
        self._is_open = False
        is_exception = (_SYNTAX_ERROR if self._without_head else _EXCEPTION).match(line)
        text = printable(line + self._place(line))
        if is_exception and self._in_group:
            self._of_group(text)
        elif is_exception:
            self._end(text)
            self._column = indent
        else:
            self._link, self._noise_lines = "", 0

    def _in_frames(self, line: str) -> None:
        if frame := _FRAME.match(line):
            place = (frame[1], frame[3] or "")
            self._last_frame = f"{frame[1]}, line {frame[2]}"
            self._source_line = ""
            self._first_frame = self._first_frame or place
            self._is_in_handler = place == self._handler
            return
        self._source_line = self._source_line or line.strip()[:_SHOWN_SOURCE]
        if self._is_in_handler and line:
            self._is_raised_in_handler = line.lstrip().startswith("raise")
            self._is_in_handler = False

    def _place(self, exception: str) -> str:
        """Where an exception without a message was raised, such as that of a bare `assert`: its type alone says too little."""
        if not self._last_frame or ":" in exception:
            return ""
        return f" ({self._source_line} in {self._last_frame})" if self._source_line else f" (in {self._last_frame})"

    def _of_group(self, text: str) -> None:
        """Of a group the first exception is reported, not the group."""
        if self._has_member:
            return
        if self._last is None or not _IS_GROUP.search(self._last.text):
            self._end(text)
        else:
            self._last.text = text
        self._has_member = not _IS_GROUP.search(text)

    def _end(self, text: str) -> None:
        """Keep an exception: a new one, the original of the last one, or one that is chained to the last one."""
        last, link = self._last, self._link
        self._goes_on = next((number for pattern, number in _GOES_ON if pattern.match(text)), 0)
        if self._replaces and last is not None:
            last.text = text
        elif link and last is not None and (link == _FROM or self._is_raised_in_handler):
            cause, last.then = last.text, ""
            last.text = text if _message(cause) in text else f"{text} (from {cause})"
        elif link and last is not None:
            last.then, self._goes_on = text, 0
        else:
            is_noise = self._noise_lines > 0 or _REPORTS_ANOTHER_PROCESS.match(text) is not None
            self._last = Raised(source=self._source, text=text, is_noise=is_noise)
            self._found.append(self._last)
        self._link, self._noise_lines, self._replaces = "", 0, False

    def _between(self, line: str) -> None:
        """A line outside of tracebacks."""
        if not line.strip():
            return
        if line.startswith(_NOISE):
            self._noise_lines, self._link, self._goes_on = _NOISE_LINES, "", 0
        elif line in (_FROM, _WHILE_HANDLING):
            self._link, self._goes_on = line, 0
        else:
            is_wrapped = bool(self._column) and line.startswith(self._column)
            if (self._goes_on or is_wrapped) and self._last is not None:
                self._last.text = printable(f"{self._last.text} {line}")
            self._goes_on = max(0, self._goes_on - 1)
            self._column = self._column if is_wrapped else ""
            self._link, self._noise_lines = "", max(0, self._noise_lines - 1)


def _message(exception: str) -> str:
    return exception.partition(": ")[2] or exception
