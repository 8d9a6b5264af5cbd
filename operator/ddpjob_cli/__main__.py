"""Entry of the commands `ddpjob` and `kubectl-ddpjob`, which kubectl runs for `kubectl ddpjob`."""

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path

EXIT_INTERRUPTED = 130
#: How many new objects begin a search for unreachable ones. Imports make almost only objects that stay: `ddpjob list` makes
#: 84,000 and `ddpjob run` 128,000. With Python's 700, a seventh of the CPU time of `ddpjob list` was such searches.
OBJECTS_PER_COLLECTION = 150_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, or these arguments instead; the result is the exit code."""
    gc.set_threshold(OBJECTS_PER_COLLECTION)
    atexit.register(
        gc.freeze
    )  # else the interpreter searches all objects twice while it ends: a fifth of the CPU time of a command
    # Imported late: a Ctrl-C during the imports ends without a traceback too.
    try:
        from ddpjob_cli.visible_output import only_visible_output

        with only_visible_output():
            return _run(arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run(arguments: Sequence[str] | None) -> int:
    from ddpjob_cli.application import application
    from ddpjob_cli.failures import end_of_reader, exit_code_of

    try:
        try:
            application().main(args=list(arguments) if arguments is not None else None, prog_name=_program_name())
        finally:  # typer ends a command that succeeded by SystemExit, too
            sys.stdout.flush()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BrokenPipeError:
        end_of_reader()
    except Exception as error:  # noqa: BLE001  # known errors become a message and an exit code; others are raised again
        return exit_code_of(error)
    return 0


def _program_name() -> str:
    """How the user calls this program, for usage texts."""
    called = Path(sys.argv[0]).name
    if called == "kubectl-ddpjob" or os.environ.get("KUBECTL_PLUGINS_CALLER"):
        return "kubectl ddpjob"
    return "ddpjob"


if __name__ == "__main__":
    sys.exit(main())
