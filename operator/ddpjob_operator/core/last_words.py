"""What a program said before it died: the Python exception in a piece of its log.

Programs run by plain python end with a traceback. torchrun prints a table of its own behind the worker's traceback and
ends with an exception of its own (ChildFailedError), which says nothing; the table holds the worker's exit code. Pure
parsing of untrusted text: every result is short and printable.
"""

import re
from dataclasses import dataclass

#: Longest text taken over into a status.
MAX_WORDS_LENGTH = 1024

_TRACEBACK = "Traceback (most recent call last):"
#: What torchrun and the ranks' loggers put before each line of a worker.
_PREFIX = re.compile(r"^(?:\[[\w-]+\]:\s?)+")
_RANK_PREFIX = re.compile(r"^\[(?:rank|default)(\d+)\]:")
#: `Type` or `module.Type: message`, as the interpreter ends a traceback.
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?::\s.*)?$")
_CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"
_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\):(.*)", re.DOTALL)
_TABLE_EXIT = re.compile(r"^\s*exitcode\s*:\s*(-?\d{1,5}) \(pid: \d+\)", re.MULTILINE)
_UNPRINTABLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")

#: Errors of a rank whose peer went away or did not answer; the cause is elsewhere.
_ECHO = re.compile(
    r"DistNetworkError|DistBackendError|DistStoreError|Connection (?:closed|reset) by peer"
    r"|Broken pipe|Timed out waiting \d+ms for|Socket Timeout|NCCL (?:error|WARN)|ncclRemoteError|ncclSystemError"
    r"|Watchdog caught collective operation timeout|heartbeat timeout|gloo/transport|RendezvousConnectionError"
    r"|NCCL operation timed out|nccl hit async error|remote process exited"
    r"|recvValue failed|sendBytes failed|failed to recv|The client socket has (?:failed|timed out)",
    re.IGNORECASE,
)

#: What is this rank's own trouble in the same classes of exceptions: a rank 0 that cannot listen, a GPU, memory that
#: NCCL shares between processes, a call that NCCL does not take.
_OWN_FAULT = re.compile(
    r"server socket has failed to listen|EADDRINUSE|Address already in use|Cuda failure|shared memory segment"
    r"|No space left on device|ncclInvalid(?:Usage|Argument)|Duplicate GPU detected",
    re.IGNORECASE,
)
#: Of the echoes, the ones that say that nobody answered in time, rather than that a connection broke.
_TIMEOUT = re.compile(
    r"Timed out waiting \d+ms for|Socket Timeout|collective operation timeout|heartbeat timeout|wait timeout after"
    r"|client socket has timed out|Timed out after \d+ seconds|NCCL operation timed out",
    re.IGNORECASE,
)
#: Memory that was asked for and not to be had: of the GPU, of torch's CPU allocator, of C++, of Python.
_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|DefaultCPUAllocator: can't allocate memory"
    r"|std::bad_alloc|^MemoryError\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExit:
    """How torchrun says that its first failing worker ended."""

    code: int | None
    signal: int | None


def printable(text: str) -> str:
    """The text without control sequences, on one line, cut to MAX_WORDS_LENGTH from the left."""
    line = " ".join(_UNPRINTABLE.sub("", text).split())
    return line if len(line) <= MAX_WORDS_LENGTH else "…" + line[1 - MAX_WORDS_LENGTH :]


def is_echo(words: str) -> bool:
    """Whether an exception is what a rank says when another one went away."""
    return _ECHO.search(words) is not None and _OWN_FAULT.search(words) is None


def is_timeout(words: str) -> bool:
    """Whether an echo says that a collective, or the other ranks, did not come in time."""
    return _TIMEOUT.search(words) is not None


def is_out_of_memory(words: str) -> bool:
    """Whether an exception says that memory ran out."""
    return _OUT_OF_MEMORY.search(words) is not None


def last_exception(text: str) -> str:
    """The last Python exception that a worker printed, as `Type: message`; empty without one.

    torchrun's own exception is never it. Where several ranks of one pod failed, an exception that only echoes another
    rank's end is passed over if there is a better one.
    """
    found = [words for words in _exceptions(_before_torchruns_own(text)) if words]
    telling = [words for words in found if not is_echo(words)]
    return (telling or found or [""])[-1]


def worker_exit(text: str) -> WorkerExit | None:
    """The first failing worker of torchrun's table; None where the text holds no table."""
    table = _ROOT_CAUSE.search(text)
    if table is None:
        return None
    code = _TABLE_EXIT.search(table[1])
    if code is None:
        return None
    number = int(code[1])
    return WorkerExit(
        code=number if number > 0 else 128 - number if number < 0 else None,
        signal=-number if number < 0 else None,
    )


def last_line(text: str) -> str:
    """The last line that says anything; empty for silent programs."""
    return next((printable(line) for line in reversed(text.splitlines()) if line.strip()), "")


def _before_torchruns_own(text: str) -> str:
    """What was printed before torchrun's own traceback, if it printed one."""
    own = text.find(_CHILD_FAILED)
    if own < 0:
        return text
    start = text.rfind(_TRACEBACK, 0, own)
    return text[: start if start >= 0 else own]


def _exceptions(text: str) -> list[str]:
    """The exception of every traceback in the text, in order; tracebacks of several ranks may be interleaved."""
    by_rank: dict[str, list[str]] = {}
    order: list[tuple[str, int]] = []
    for line in text.splitlines():
        rank = _RANK_PREFIX.match(line)
        lines = by_rank.setdefault(rank[1] if rank else "", [])
        bare = _PREFIX.sub("", line)
        if bare.startswith(_TRACEBACK):
            order.append((rank[1] if rank else "", len(lines)))
        lines.append(bare)
    return [_exception_after(by_rank[rank][start + 1 :]) for rank, start in order]


def _exception_after(lines: list[str]) -> str:
    """The first unindented line behind a traceback's frames, with the lines its message goes on over."""
    for number, line in enumerate(lines):
        if line and not line[0].isspace():
            return printable(line) if _EXCEPTION.match(line) else ""
        if not line and number:
            return ""
    return ""
