"""What a program printed before it ended: its exception or last line, its rank, and how torchrun's worker ended.

torchrun prints a table after its workers' output and ends with an exception of its own (ChildFailedError), which does not name
the cause; the table holds the worker's rank and exit code. All of it is untrusted text: each function takes time in proportion
to its length, and each result is short and printable.

A program may print a line of megabytes, such as a tensor, after its traceback. Of such a line only the ends are parsed.
"""

import re
from collections.abc import Sequence

from ddpjob_operator.api.names import contract
from ddpjob_operator.core.failure.json_records import lines_of_record
from ddpjob_operator.core.failure.last_line import last_line as last_line_of
from ddpjob_operator.core.failure.tracebacks import TRACEBACK, Raised, exceptions, source_and_text
from ddpjob_operator.core.model import LogEnd, WorkerExit
from ddpjob_operator.core.progress import latest_progress
from ddpjob_operator.core.untrusted import last_lines, tail, visible

#: Lines with more characters are shortened to their first and last KEPT_LENGTH ones.
LONG_LINE_LENGTH = 4096
KEPT_LENGTH = 500
_CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"
#: What torchrun itself raises at SIGTERM; no worker does.
_TORCHRUN_STOPPED = re.compile(r"torch\.distributed\.elastic\.\S*SignalException: Process \d+ got signal: 15$")
_ROOT_CAUSE = "Root Cause (first observed failure):"
_TABLE_RANK = re.compile(r"\s*rank\s*: (\d{1,9}) \(local_rank: \d{1,9}\)")
_TABLE_EXIT = re.compile(r"\s*exitcode\s*: (-?\d{1,5}) \(pid: \d{1,10}\)")
#: Lines that torch's launcher and libraries log, and those of our launcher: they are about the end of a program, not by it.
_LAUNCHERS = re.compile(
    r"[IWEF]\d{4} [\d:.]+ \d+ \S*torch/distributed/|\[[IWEF]\d{4} [\d:.]+ \w+\.cpp:\d+\]|ddpjob launcher: "
)
_OUR_LAUNCHER = re.compile(
    r"ddpjob launcher: rank (\d{1,9}) ended with exit code (\d{1,3})(?:; rank (\d{1,9}) had ended with exit code 0 before)?$"
)
_RANK = re.compile(r"\[rank(\d{1,9})\]:$")
#: The first line of a termination message of the trainer, a session or our launcher.
_TERMINATION_RANK = re.compile(rf"rank (\d{{1,9}})(?:{re.escape(contract.TERMINATION_ECHO_SUFFIX)})?$")

# The next three are matched against text in lower case: nine times as fast as re.IGNORECASE (2 ms instead of 18 ms for
# 64 KiB on two cores of a Xeon).

#: Errors of a rank whose peer went away or did not answer; the cause is elsewhere. Only errors of torch's communication:
#: its own exceptions, the words of its libraries, and RuntimeErrors that begin with what gloo and the store say. A
#: connection that a program makes itself, to a bucket or a database, breaks with an OSError or an error of that library.
_ECHO = re.compile(
    r"\bdist(?:network|backend|store)error\b|rendezvous(?:connection|timeout)error|gloo/transport|gloo connectfullmesh failed"
    r"|^(?:\[[\w-]+\]:\s?)*runtimeerror: (?:\[[^\s\]]+\] )?"
    r"(?:connection (?:closed|reset) by peer|broken pipe|socket timeout|socket closed|(?:read|write) error \[)"
    r"|timed out waiting \d+ms for|nccl (?:error|warn)|ncclremoteerror|ncclsystemerror"
    r"|watchdog caught collective operation timeout|heartbeat timeout|failed to pass monitoredbarrier in"
    r"|nccl operation timed out|nccl hit async error|remote process exited"
    r"|recvvalue failed|sendbytes failed|failed to recv, got|the client socket has (?:failed|timed out)",
    re.MULTILINE,
)
#: Faults of the rank itself in the same classes of exceptions: a rank 0 that cannot listen, a GPU, memory that
#: NCCL shares between processes, a call that NCCL does not accept.
_OWN_FAULT = re.compile(
    r"server socket has failed to listen|eaddrinuse|address already in use|cuda failure|shared memory segment"
    r"|no space left on device|ncclinvalid(?:usage|argument)|duplicate gpu detected|unhandled cuda error"
)
#: Of the echoes, the ones that say that nobody answered in time, rather than that a connection broke.
_TIMEOUT = re.compile(
    r"timed out waiting \d+ms for|socket timeout|collective operation timeout|heartbeat timeout|wait timeout after"
    r"|failed to pass monitoredbarrier in"
    r"|client socket has timed out|timed out after \d+ seconds|nccl operation timed out|rendezvoustimeouterror"
)
#: Memory that was requested and not available: of the GPU, of torch's CPU allocator, of C++, of Python, of numpy, of fork,
#: of a data-loader worker that the kernel killed, of /dev/shm.
_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|\b(?:CUDA|HIP|XPU|NPU) out of memory|CUDA error: out of memory|STATUS_ALLOC_FAILED"
    r"|DefaultCPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc|^[\w.]*MemoryError\b|RESOURCE_EXHAUSTED"
    r"|Cannot allocate memory(?! in static TLS)"
    r"|DataLoader worker \(pid \d+\) is killed by signal: (?:Killed|Bus error)",
    re.MULTILINE,
)
_DEATH_OF_A_WORKER = re.compile(
    r"RuntimeError: DataLoader worker|ConnectionResetError: |EOFError\b|BrokenPipeError: |FileNotFoundError: .*/(?:torch_|pymp-)"
)
#: Of these, the ones of shared memory.
_OUT_OF_SHARED_MEMORY = re.compile(
    r"killed by signal: Bus error|out of shared memory|insufficient shared memory|creating shared memory segment"
    r"|unable to (?:write|open|allocate|mmap|resize) .{0,20}?/torch_.{0,99}?No space left on device"
    r"|No space left on device.{0,9}(?:/dev/shm|/torch_|/psm_)|/dev/shm\S{0,99} .{0,99}?No space left on device"
)


#: A carriage return at the end of a name in a message: a script with the line ends of Windows named a file or program.
_RETURN_IN_NAME = re.compile(r"\r(?=['\u2019:])")
#: torch's logging and warnings, and Lightning.
_SAYS_RANK_0 = re.compile(r"^\[rank0\]:|\bGLOBAL_RANK: 0, MEMBER: 1/", re.MULTILINE)


def end_of_log(text: str) -> LogEnd:
    """What decisions need of the end of a log."""
    short = _with_short_lines(text)
    lines = [visible(line) for line in last_lines(short)]
    printed = _before_torchruns_own(lines)
    cause = _cause(exceptions(printed), table := _table(lines))
    rank = _rank_of(lines, cause, table)
    return LogEnd(
        exception=cause.text if cause else "",
        then=cause.then if cause else "",
        rank=rank,
        worker=next((worker for found, worker in table if found == rank), table[-1][1] if table else None),
        left_early=next((int(end[3]) for line in lines if (end := _OUR_LAUNCHER.match(line)) and end[3]), None),
        symptoms=_symptoms(tail(short)),
        last_line=last_line_of([source_and_text(line)[1] for line in printed]),
        progress=latest_progress(text),
        says_rank_0=bool(_SAYS_RANK_0.search(short)),
    )


def _with_short_lines(text: str) -> str:
    """The text with the middle of each long line left out, so that such lines do not push a traceback out of what is parsed.

    A record in JSON with a traceback becomes the lines of the traceback. A carriage return in a name is shown as bash shows it.
    """
    text = _RETURN_IN_NAME.sub(r"\\r", text)
    return "\n".join(
        line if len(line) <= LONG_LINE_LENGTH else f"{line[:KEPT_LENGTH]}…{line[-KEPT_LENGTH:]}"
        for line in map(lines_of_record, text.split("\n"))
    )


def _symptoms(text: str) -> str:
    """The first match of each pattern, so that they find the same in this short text as in the whole one."""
    lower = text.lower()
    searched = (
        (_OUT_OF_MEMORY, text),
        (_OUT_OF_SHARED_MEMORY, text),
        (_ECHO, lower),
        (_OWN_FAULT, lower),
        (_TIMEOUT, lower),
    )
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
    return _OUT_OF_MEMORY.search(tail(text)) is not None or is_out_of_shared_memory(text)


def is_out_of_shared_memory(text: str) -> bool:
    """Whether an exception says that /dev/shm is full."""
    return _OUT_OF_SHARED_MEMORY.search(tail(text)) is not None


def is_death_of_a_worker(exception: str) -> bool:
    """Whether an exception is what a process reports whose data-loader worker is gone."""
    return _DEATH_OF_A_WORKER.match(exception) is not None


def last_exception(text: str) -> str:
    """The last Python exception that a worker printed, as `Type: message`; empty without one.

    torchrun's own exception is never it. Where several ranks of one pod failed, an exception that only echoes another
    rank's end is skipped if there is a better one.
    """
    return end_of_log(text).exception


def _before_torchruns_own(lines: Sequence[str]) -> list[str]:
    """What the program printed before torchrun's traceback and table, without the lines that launchers log."""
    own = next((at for at, line in enumerate(lines) if line.startswith((_CHILD_FAILED, _ROOT_CAUSE))), None)
    if own is not None:  # the head of its traceback may be cut off, and then all before is torchrun's
        start = next((at for at in range(own - 1, -1, -1) if lines[at].startswith(TRACEBACK)), 0)
        lines = lines[:start]
    elif _is_table(lines):
        lines = ()
    return [line for line in lines if not _LAUNCHERS.match(source_and_text(line)[1])]


def _is_table(lines: Sequence[str]) -> bool:
    """Whether the text is only the end of torchrun's table."""
    rule = next((line for line in reversed(lines) if line.strip()), "")
    return len(rule) > 20 and set(rule) == {"="} and any(_TABLE_EXIT.match(line) for line in lines)


def _table(lines: Sequence[str]) -> list[tuple[int, WorkerExit]]:
    """The failing workers of torchrun's table by rank; the last one is the first that torchrun saw fail."""
    root = next((at for at, line in enumerate(lines) if line.startswith(_ROOT_CAUSE)), len(lines))
    first = _workers(lines[root:])
    return [*_workers(lines[:root]), first[0]] if first else []


def _workers(lines: Sequence[str]) -> list[tuple[int, WorkerExit]]:
    found: list[tuple[int, WorkerExit]] = []
    rank = -1
    for line in lines:
        if match := _TABLE_RANK.match(line):
            rank = int(match[1])
        elif rank >= 0 and (match := _TABLE_EXIT.match(line)):
            number = int(match[1])
            code = number if number > 0 else 128 - number if number < 0 else None
            found.append((rank, WorkerExit(code=code, signal=-number if number < 0 else None)))
    return found


def _cause(found: Sequence[Raised], table: Sequence[tuple[int, WorkerExit]]) -> Raised | None:
    """The exception that explains the end: no noise, no echo if another rank has a better one, then the last.

    Of several ranks that failed by themselves, the one that torchrun saw fail first.
    """
    loud = [raised for raised in found if not raised.is_noise] or list(found)
    own = [raised for raised in loud if not is_echo(raised.text)] or loud
    first = [raised for raised in own if table and _rank(raised) == table[-1][0]] or own
    return first[-1] if first else None


def _rank_of(lines: Sequence[str], cause: Raised | None, table: Sequence[tuple[int, WorkerExit]]) -> int | None:
    """The global rank of the process that ended first by itself, as far as the text says."""
    if cause is not None and (rank := _rank(cause)) is not None:
        return rank
    if table:
        return table[-1][0]
    ends = [match for line in lines if (match := _OUR_LAUNCHER.match(line))]
    own = [match for match in ends if int(match[2]) != contract.EXIT_PEER_LOST] or ends
    if own:
        return int(own[0][1])
    match = _TERMINATION_RANK.match(lines[0]) if lines else None
    return int(match[1]) if match else None


def _rank(raised: Raised) -> int | None:
    match = _RANK.match(raised.source)
    return int(match[1]) if match else None
