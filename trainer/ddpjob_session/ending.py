"""How a rank ends: the report of the run, the evidence file, and the termination message with the right exit code."""

import os
import signal
import sys
import traceback
from typing import NoReturn

from ddpjob_ranks import contract, distributed, generation, termination
from ddpjob_ranks.device_memory import is_out_of_memory
from ddpjob_ranks.errors import ConfigError, ReplacedError, ShortageError
from ddpjob_ranks.launch.identity import Worker
from ddpjob_ranks.launch.preflight import RefusedError
from ddpjob_ranks.watch.watchdog import Watchdog
from ddpjob_session.checkpoints.claim import Fenced
from ddpjob_session.checkpoints.storage import UnavailableError
from ddpjob_session.checkpoints.writer import CheckpointWriter


def fail(error: BaseException, worker: Worker, watchdog: Watchdog, writer: CheckpointWriter | None = None) -> NoReturn:
    """Report the error and exit without the usual teardown, which would wait for ranks that may be gone.

    Only a checkpoint in progress is waited for, since the next attempt resumes from it.

    The message is written before this process's connections close, so no other rank can fail because of them earlier.
    """
    is_explained = isinstance(error, ConfigError | Fenced | ReplacedError | ShortageError | UnavailableError)
    echo = not is_explained and (watchdog.aborted_collectives or distributed.is_peer_loss(error))
    current = generation.current(os.environ)
    if current is not None:
        current.save()
    code, text, printed = exit_code_of(error), f"rank {worker.rank}\n{error}", ""
    if isinstance(error, ConfigError):
        printed = str(error)  # with the message, since other ranks find most mistakes, too
    elif is_explained:
        print(error, file=sys.stderr)
    else:
        text = termination.of_exception(error, rank=worker.rank, echo=echo)
        traceback.print_exception(error)
    if echo:
        code = contract.EXIT_PEER_LOST
        lost = ""
        if current is None and (lost := watchdog.find_lost_rank()):
            text = f"rank {worker.rank}{contract.TERMINATION_ECHO_SUFFIX}\n{lost}"
        print(f"rank {worker.rank}: lost a peer; {lost or 'the cause is on another rank'}", file=sys.stderr)
    if not echo:
        watchdog.report_failure("".join(traceback.format_exception_only(error)).strip())
    termination.write(text, echo=echo, printed=printed)
    if writer is not None and not isinstance(error, Fenced):
        writer.linger()
    leave(code)


def exit_code_of(error: BaseException) -> int:
    """The exit code for an error whose cause is on this rank."""
    match error:
        case RefusedError() if (current := generation.current(os.environ)) is not None and current.number > 1:
            return contract.EXIT_PROGRAM_ERROR  # a replaced pod differs, and no pod of another attempt may
        case ConfigError():
            return contract.EXIT_BAD_CONFIG
        case Fenced() | ReplacedError():
            return contract.EXIT_FENCED
        case KeyboardInterrupt():
            return 128 + signal.SIGINT
        case SystemExit(code=int(code)) if code:
            return code
    return contract.EXIT_OUT_OF_MEMORY if is_out_of_memory(error) else contract.EXIT_PROGRAM_ERROR


def leave(code: int) -> NoReturn:
    """Exit at once: the interpreter's own exit would wait for threads, such as the one that writes a checkpoint."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
