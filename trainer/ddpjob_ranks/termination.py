"""The termination message: why a process ended, for the operator, at most 1 KB of plain text.

A node's ranks share one file. The first cause stays: a later message does not replace it, and a rank that only lost its
peer does not overwrite what the peer wrote.
"""

import fcntl
import os
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError


def write(text: str, *, echo: bool, printed: str = "") -> None:
    """Write `text`, cut at its head to the size limit, unless a more important message is there.

    Args:
        text: What ended this process. Its last line says most.
        echo: Whether the cause is on another rank; then any message already there stays.
        printed: The end of the text, for stderr, unless another rank of this node has ended with it, too, and printed it.

    Writes nothing where the file is absent, as outside a cluster.
    """
    unprinted = printed
    with suppress(OSError), _open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the node's ranks may all end at once
        found = file.read()
        if not found or (is_echo(found) and not echo):
            file.seek(0)
            file.truncate()
            file.write(_tail(text))
            file.flush()  # before the text is printed, which waits where nobody reads stderr
        unprinted = ""
        if not found.endswith(_tail(printed)):
            print(printed, file=sys.stderr, flush=True)  # within the lock: the end of another rank may end this one
    if unprinted:  # the file cannot be locked or written
        print(unprinted, file=sys.stderr, flush=True)


def read() -> str:
    """The message; empty where there is none."""
    with suppress(OSError), _path(os.environ).open(encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""


def clear() -> None:
    """Remove the message of a failure that does not end this pod."""
    with suppress(OSError), _path(os.environ).open("r+b") as file:
        file.truncate()


def refuse(error: ConfigError) -> int:
    """Report a mistake of the user that was found before any other rank is needed. Returns the exit code."""
    write(str(error), echo=False, printed=str(error))
    return contract.EXIT_BAD_CONFIG


def of_exception(error: BaseException, *, rank: int, echo: bool) -> str:
    """A line that names the rank, then the end of the traceback, whose last line is the exception."""
    header = f"rank {rank}{contract.TERMINATION_ECHO_SUFFIX if echo else ''}\n"
    text = "".join(traceback.format_exception(error)).rstrip()
    return header + _tail(text, contract.TERMINATION_MESSAGE_MAX_BYTES - len(header))


def is_echo(message: str) -> bool:
    """Whether a message says that its rank only lost its peer."""
    return message.split("\n", 1)[0].endswith(contract.TERMINATION_ECHO_SUFFIX)


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """For the ranks of a launcher: where there is no file, as outside a cluster, one in memory, so that they share a message.

    It exists as long as this process.
    """
    if _path(environ).exists():
        return {}
    return {contract.DDPJOB_TERMINATION_LOG: f"/proc/{os.getpid()}/fd/{os.memfd_create('termination-log')}"}


def _open() -> IO[str]:
    """The file; an empty one that nobody else reads where it is absent."""
    try:
        return _path(os.environ).open("r+", encoding="utf-8", errors="replace")
    except OSError:
        return os.fdopen(os.memfd_create("termination-log"), "r+", encoding="utf-8")


def _path(environ: Mapping[str, str]) -> Path:
    return Path(environ.get(contract.DDPJOB_TERMINATION_LOG) or contract.TERMINATION_LOG_PATH)


def _tail(text: str, max_bytes: int = contract.TERMINATION_MESSAGE_MAX_BYTES) -> str:
    return text.encode("utf-8", errors="replace")[-max_bytes:].decode("utf-8", errors="ignore")
