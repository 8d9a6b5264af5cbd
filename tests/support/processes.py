"""Processes of tests: forked ones that have loaded torch, waits that say what they waited for, and what trainings print."""

import io
import multiprocessing
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver, process
from multiprocessing.connection import Connection
from pathlib import Path
from unittest import mock

from testbed import child_named, wait_for

#: Starting a process and loading torch takes 2 to 10 s on a busy machine with two cores.
DEADLINE_SECONDS = 240.0
CONTEXT = multiprocessing.get_context("forkserver")
#: torch._dynamo is what the first step of an optimizer loads, in seconds. pytest is the main module of the tests, which
#: multiprocessing loads in each process.
PRELOADED = (
    "ddpjob_trainer.worker",
    "ddpjob_recipes.digits",
    "ddpjob_measure.measuring",
    "torchvision",
    "torch._dynamo",
    "pytest",
    "support.forked_ranks",
)
CONTEXT.set_forkserver_preload(list(PRELOADED))
#: The fork server loads modules before it knows this process's module path, and OpenMP before a rank's own main().
SERVER_ENVIRONMENT = {"PYTHONPATH": ":".join(path for path in sys.path if path), "OMP_WAIT_POLICY": "passive"}


def await_text(pattern: str, text: Callable[[], str], has_ended: Callable[[], bool]) -> re.Match[str]:
    """The first match in what a process prints, which must come before the deadline and the end of the process."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        ended = has_ended()  # before the last look at its output
        if match := re.search(pattern, text()):
            return match
        assert not ended, f"ended without {pattern!r}:\n{text()}"
        assert time.monotonic() < deadline, f"no {pattern!r} in {DEADLINE_SECONDS} s:\n{text()}"
        time.sleep(0.005)


def pid_of_rank(launcher: int, rank: int) -> int:
    """The process of a rank, which is named after it, once its launcher has started it."""

    def pid() -> int | None:
        with suppress(ProcessLookupError):  # it has not begun
            return child_named(launcher, f"rank {rank}")
        return None

    return wait_for(f"rank {rank} of launcher {launcher}", pid, seconds=DEADLINE_SECONDS, every_seconds=0.005)


class Printed:
    """What rank 0 of a training has printed."""

    def printed(self) -> str:
        """Its output so far, both streams."""
        raise NotImplementedError

    @property
    def losses(self) -> dict[int, float]:
        """Loss by number of steps done, exactly as computed."""
        found = re.findall(r"^epoch \d+ step (\d+)/\d+ loss (\S+)", self.printed(), re.MULTILINE)
        return {int(step): float(loss) for step, loss in found}

    @property
    def weights(self) -> str:
        """The digest of the final parameters."""
        match = re.search(r"^weights sha256 (\w+)$", self.printed(), re.MULTILINE)
        assert match, self.printed()
        return match[1]

    @property
    def accuracy(self) -> float:
        """The last accuracy that was printed, in percent."""
        return float(re.findall(r"accuracy (\S+) %", self.printed())[-1])


def forked(target: Callable[..., None], *arguments: object) -> multiprocessing.context.ForkServerProcess:
    """A process that has loaded torch and nothing else when it begins, and calls this function of a module."""
    with mock.patch.dict(os.environ, SERVER_ENVIRONMENT):
        forkserver.ensure_running()
    begun = CONTEXT.Process(target=target, args=arguments, daemon=True)
    begun.start()
    return begun


class ForkedProgram:
    """A Python program in a forked process, with the part of `subprocess.Popen` that tests use.

    Where it is a launcher, the template of its ranks is forked, too, so that a pod costs 0.3 s of CPU, not 4.
    """

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        """`arguments` are those of the interpreter: a file, or -m and a module, and its own."""
        reader, writer = CONTEXT.Pipe(duplex=False)
        self._process = forked(_run_program, list(arguments), dict(environ), writer)
        writer.close()
        self.stdout: io.TextIOWrapper | None = os.fdopen(os.dup(reader.fileno()), encoding="utf-8", errors="replace")
        reader.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, once it has ended; that of a signal is negative."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The same."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code.

        Raises:
            TimeoutExpired: it has not ended.
        """
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired("a forked program", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it is still there."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, if it is still there."""
        self.send_signal(signal.SIGKILL)


def _run_program(arguments: Sequence[str], environ: Mapping[str, str], output: Connection) -> None:
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    _behave_as_started(environ)
    from ddpjob_ranks.launch import template

    template.subprocess = ForkingSubprocess  # type: ignore[assignment,attr-defined]
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")


def _behave_as_started(environ: Mapping[str, str]) -> None:
    """Forget that multiprocessing has started this process, in which programs may start daemons of their own."""
    os.environ.clear()
    os.environ.update(environ)
    process.current_process()._config.pop("daemon", None)  # type: ignore[attr-defined]
    process._parent_process = None  # type: ignore[attr-defined]
    process._children = set()  # type: ignore[attr-defined]


class ForkingSubprocess:
    """In the place of `subprocess` in a launcher that has loaded torch: its template is a fork of it."""

    class Popen:
        """A template."""

        def __init__(
            self,
            command: Sequence[str],
            *,
            env: Mapping[str, str],
            pass_fds: Sequence[int],
            preexec_fn: Callable[[], None],
            process_group: int,
        ) -> None:
            self._code: int | None = None
            self._pid = os.fork()
            if self._pid == 0:
                os.setpgid(0, process_group)
                for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
                    if descriptor not in (0, 1, 2, *pass_fds):
                        with suppress(OSError):  # that of the list itself
                            os.close(descriptor)
                preexec_fn()
                _behave_as_started(env)
                from ddpjob_ranks.launch import template

                template.main(command[3:])

        def poll(self) -> int | None:
            """Its exit code, once it has ended."""
            if self._code is None:
                with suppress(ChildProcessError):
                    pid, status = os.waitpid(self._pid, os.WNOHANG)
                    self._code = os.waitstatus_to_exitcode(status) if pid else None
            return self._code
