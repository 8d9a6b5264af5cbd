"""What an error means for the command line: a message on standard error and an exit code."""

import os
import sys
from typing import NoReturn

EXIT_SUCCEEDED = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CLUSTER = 3
EXIT_TIMEOUT = 124
#: 128 + SIGPIPE, as of other programs whose output nobody reads any more.
EXIT_BROKEN_PIPE = 141


class CommandError(Exception):
    """A command cannot continue. Its text names the object and the next step."""

    def __init__(self, message: str, *, code: int = EXIT_USAGE) -> None:
        """`code` is the exit code."""
        super().__init__(message)
        self.code = code


def end_of_reader() -> NoReturn:
    """End after a broken pipe, as in `ddpjob logs JOB | head`, without an error message.

    The default action of SIGPIPE would do the same, and end the command whenever a connection to the API server breaks.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's flush at exit
    raise SystemExit(EXIT_BROKEN_PIPE)


def exit_code_of(error: Exception) -> int:
    """Print the error; gives its exit code. Raises it again if it is a fault of this program."""
    code = _code(error)
    if code is None:
        raise error
    text = _text(error)
    if code == EXIT_CLUSTER and "there is no kubeconfig" in text:
        text += ", or --kubeconfig; without a cluster, jobs run on this machine: ddpjob run --local FILE"
    for line in (*(text.splitlines() or [type(error).__name__]), *getattr(error, "__notes__", ())):
        print(f"ddpjob: {line}", file=sys.stderr)
    return code


def _text(error: Exception) -> str:
    """The text of an error; that of the operating system begins with a number and ends without a next step."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}; check the path and who may use it"
    return str(error)


def _code(error: Exception) -> int | None:
    if isinstance(error, CommandError):
        return error.code
    # An error of the client can only come from a client that was imported.
    client = sys.modules.get("ddpjob.client")
    if client is not None and isinstance(error, client.ClientError):
        if isinstance(error, client.WaitTimeoutError):
            return EXIT_TIMEOUT
        cluster = (client.UnreachableError, client.CredentialError, client.ForbiddenError, client.NotInstalledError)
        return EXIT_CLUSTER if isinstance(error, cluster) else EXIT_USAGE
    return EXIT_USAGE if isinstance(error, (ValueError, OSError)) else None
