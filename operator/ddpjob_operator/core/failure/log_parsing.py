"""What a program printed before it ended: the Python exception in a piece of its log.

A Python program that fails prints a traceback. torchrun prints a table after the worker's traceback and ends with an
exception of its own (ChildFailedError), which does not name the cause; the table holds the worker's exit code. All of it is
untrusted text: each function takes time in proportion to its length, and each result is short and printable.

A program may print a line of megabytes, such as a tensor, after its traceback. Of such a line only the ends are parsed.
"""

import re

from ddpjob_operator.core.model import LogEnd, WorkerExit
from ddpjob_operator.core.progress import latest_progress
from ddpjob_operator.core.untrusted import last_lines, printable, tail

#: Lines with more characters are shortened to their first and last KEPT_LENGTH ones.
LONG_LINE_LENGTH = 4096
KEPT_LENGTH = 500
#: How a traceback begins.
TRACEBACK = "Traceback (most recent call last):"
#: What torchrun and the ranks' loggers put before each line of a worker.
_PREFIX = re.compile(r"(?:\[[\w-]+\]:\s?)+")
_RANK_PREFIX = re.compile(r"\[(?:rank|default)(\d{1,9})\]:")
#: `Type` or `module.Type: message`, as the interpreter ends a traceback.
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?::\s.*)?$")
_CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"
#: What torchrun itself raises at SIGTERM; no worker does.
_TORCHRUN_STOPPED = re.compile(r"torch\.distributed\.elastic\.\S*SignalException: Process \d+ got signal: 15$")
_ROOT_CAUSE = "Root Cause (first observed failure):"
_TABLE_EXIT = re.compile(r"^[ \t]*exitcode[ \t]*:[ \t]*(-?\d{1,5}) \(pid: \d{1,10}\)", re.MULTILINE)

# The next three are matched against text in lower case: nine times as fast as re.IGNORECASE (2 ms instead of 18 ms for
# 64 KiB on two cores of a Xeon).

#: Errors of a rank whose peer went away or did not answer; the cause is elsewhere.
_ECHO = re.compile(
    r"distnetworkerror|distbackenderror|diststoreerror|connection (?:closed|reset) by peer"
    r"|broken pipe|timed out waiting \d+ms for|socket timeout|nccl (?:error|warn)|ncclremoteerror|ncclsystemerror"
    r"|watchdog caught collective operation timeout|heartbeat timeout|gloo/transport|rendezvousconnectionerror"
    r"|nccl operation timed out|nccl hit async error|remote process exited"
    r"|recvvalue failed|sendbytes failed|failed to recv|the client socket has (?:failed|timed out)"
)
#: Faults of the rank itself in the same classes of exceptions: a rank 0 that cannot listen, a GPU, memory that
#: NCCL shares between processes, a call that NCCL does not accept.
_OWN_FAULT = re.compile(
    r"server socket has failed to listen|eaddrinuse|address already in use|cuda failure|shared memory segment"
    r"|no space left on device|ncclinvalid(?:usage|argument)|duplicate gpu detected"
)
#: Of the echoes, the ones that say that nobody answered in time, rather than that a connection broke.
_TIMEOUT = re.compile(
    r"timed out waiting \d+ms for|socket timeout|collective operation timeout|heartbeat timeout|wait timeout after"
    r"|client socket has timed out|timed out after \d+ seconds|nccl operation timed out"
)
#: Memory that was requested and not available: of the GPU, of torch's CPU allocator, of C++, of Python.
_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|DefaultCPUAllocator: can't allocate memory"
    r"|std::bad_alloc|^MemoryError\b"
)


def end_of_log(text: str) -> LogEnd:
    """What decisions need of the end of a log."""
    short = _with_short_lines(text)
    return LogEnd(
        exception=last_exception(short),
        worker=worker_exit(short),
        symptoms=_symptoms(tail(short)),
        last_line=last_line(short),
        progress=latest_progress(text),
    )


def _with_short_lines(text: str) -> str:
    """The text with the middle of each long line left out, so that such lines do not push a traceback out of what is parsed."""
    return "\n".join(
        line if len(line) <= LONG_LINE_LENGTH else f"{line[:KEPT_LENGTH]}…{line[-KEPT_LENGTH:]}"
        for line in text.split("\n")
    )


def _symptoms(text: str) -> str:
    """The first match of each pattern, so that they find the same in this short text as in the whole one."""
    lower = text.lower()
    searched = ((_OUT_OF_MEMORY, text), (_ECHO, lower), (_OWN_FAULT, lower), (_TIMEOUT, lower))
    return "\n".join(match[0] for pattern, where in searched if (match := pattern.search(where)))


def is_echo(text: str) -> bool:
    """Whether an exception is what a rank reports when another one went away."""
    lower = tail(text).lower()
    return _ECHO.search(lower) is not None and _OWN_FAULT.search(lower) is None


def is_timeout(text: str) -> bool:
    """Whether an echo says that a collective, or the other ranks, did not come in time."""
    return _TIMEOUT.search(tail(text).lower()) is not None


def is_stop_of_torchrun(exception: str) -> bool:
    """Whether an exception is what torchrun ends with when it gets SIGTERM."""
    return _TORCHRUN_STOPPED.match(exception) is not None


def is_out_of_memory(text: str) -> bool:
    """Whether an exception says that memory ran out."""
    return _OUT_OF_MEMORY.search(tail(text)) is not None


def source_and_text(line: str) -> tuple[str, str]:
    """The rank that a line begins with, empty without one, and the line without what torchrun and loggers put before it."""
    prefix, rank = _PREFIX.match(line), _RANK_PREFIX.match(line)
    return rank[1] if rank else "", line[prefix.end() :] if prefix else line


def last_exception(text: str) -> str:
    """The last Python exception that a worker printed, as `Type: message`; empty without one.

    torchrun's own exception is never it. Where several ranks of one pod failed, an exception that only echoes another
    rank's end is skipped if there is a better one.
    """
    found = [exception for exception in _exceptions(_before_torchruns_own(tail(text))) if exception]
    own = [exception for exception in found if not is_echo(exception)]
    return (own or found or [""])[-1]


def worker_exit(text: str) -> WorkerExit | None:
    """The first failing worker of torchrun's table; None where the text holds no table."""
    _, found, table = tail(text).rpartition(_ROOT_CAUSE)
    code = _TABLE_EXIT.search(table) if found else None
    if code is None:
        return None
    number = int(code[1])
    return WorkerExit(
        code=number if number > 0 else 128 - number if number < 0 else None,
        signal=-number if number < 0 else None,
    )


def last_line(text: str) -> str:
    """The last line with something visible on it; empty for silent programs."""
    return next((line for line in map(printable, reversed(last_lines(text))) if line), "")


def _before_torchruns_own(text: str) -> str:
    """What was printed before torchrun's own traceback, if it printed one."""
    own = text.find(_CHILD_FAILED)
    if own < 0:
        return text
    start = text.rfind(TRACEBACK, 0, own)
    return text[: start if start >= 0 else own]


def _exceptions(text: str) -> list[str]:
    """The exception of every traceback in the text, in order; empty for a traceback without one.

    An exception is the first line after the traceback's indented frames. Tracebacks of several ranks may be interleaved.
    """
    found: list[str] = []
    unfinished: dict[str, int] = {}
    for line in last_lines(text):
        source, bare = source_and_text(line)
        if bare.startswith(TRACEBACK):
            unfinished[source] = len(found)
            found.append("")
        elif source in unfinished and not bare[:1].isspace():
            number = unfinished.pop(source)
            found[number] = printable(bare) if _EXCEPTION.match(bare) else ""
    return found
