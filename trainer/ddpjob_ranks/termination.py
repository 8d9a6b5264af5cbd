"""The termination message: why a process ended, for the operator, at most 1 KB of plain text.

A node's ranks share one file. The first cause stays: a later message does not replace it, and a rank that only lost its
peer does not overwrite what the peer wrote.
"""

import fcntl
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError


def write(text: str, *, echo: bool) -> None:
    """Write `text`, cut at its head to the size limit, unless a more important message is there.

    Args:
        text: What ended this process. Its last line says most.
        echo: Whether the cause is on another rank; then any message already there stays.

    Does nothing where the file is absent, as outside a cluster.
    """
    try:
        with _path().open("r+", encoding="utf-8", errors="replace") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # the node's ranks may all end at once
            found = file.read()
            if found and (echo or not is_echo(found)):
                return
            file.seek(0)
            file.truncate()
            file.write(_tail(text))
    except OSError:
        return


def read() -> str:
    """The message; empty where there is none."""
    with suppress(OSError), _path().open(encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""


def clear() -> None:
    """Remove the message of a failure that does not end this pod."""
    with suppress(OSError), _path().open("r+b") as file:
        file.truncate()


def refuse(error: ConfigError) -> int:
    """Report a mistake of the user that was found before any other rank is needed. Returns the exit code."""
    print(error, file=sys.stderr)
    write(str(error), echo=False)
    return contract.EXIT_BAD_CONFIG


def of_exception(error: BaseException, *, rank: int, echo: bool) -> str:
    """A line that names the rank, then the end of the traceback, whose last line is the exception."""
    header = f"rank {rank}{contract.TERMINATION_ECHO_SUFFIX if echo else ''}\n"
    text = "".join(traceback.format_exception(error)).rstrip()
    return header + _tail(text, contract.TERMINATION_MESSAGE_MAX_BYTES - len(header))


def is_echo(message: str) -> bool:
    """Whether a message says that its rank only lost its peer."""
    return message.split("\n", 1)[0].endswith(contract.TERMINATION_ECHO_SUFFIX)


def _path() -> Path:
    return Path(os.environ.get(contract.DDPJOB_TERMINATION_LOG) or contract.TERMINATION_LOG_PATH)


def _tail(text: str, max_bytes: int = contract.TERMINATION_MESSAGE_MAX_BYTES) -> str:
    return text.encode("utf-8", errors="replace")[-max_bytes:].decode("utf-8", errors="ignore")
