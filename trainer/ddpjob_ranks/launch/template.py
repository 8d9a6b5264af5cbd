"""The process that ranks are forked from: it has imported torch and the trainer, which takes seconds, and nothing runs in it.

A fork has these modules in milliseconds, so a rank that ends is replaced at once. While it forks, the process has one thread, and it
has not touched a GPU, as both would be broken in a fork. The pool of threads that OpenBLAS starts when NumPy is imported is no
exception: OpenBLAS ends it before each fork (pthread_atfork) and starts another one where it is needed.

It has a socket to the launcher. Its first message says that everything is imported. The launcher then sends a message for each new
process: the file descriptors that the process inherits, and that of a text in JSON with the arguments and the environment, which may
be longer than a message can be. The new process becomes a child of the launcher, which has made itself the reaper of orphans: its
parent, a fork of the template, ends at once.
"""

import atexit
import gc
import json
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from ddpjob_ranks import contract, generation, prctl
from ddpjob_ranks.launch.gpu_use import import_all
from ddpjob_ranks.launch.launcher import FORWARDED

#: Seconds between two looks at the signals that arrived while the template still imports.
LOOK_SECONDS = 0.2
#: Longest wait for a fork after a request to stop has arrived.
FORK_SECONDS = 10.0


class TemplateError(Exception):
    """No process can be forked from the template, which has ended or was asked to end."""


class Template:
    """The launcher's side. Makes this process the reaper of its orphaned descendants.

    `multiprocessing` makes its sockets, such as those of data workers, in `sockets`. By default each process makes a directory
    for its own, and leaves it behind if it is killed.
    """

    def __init__(
        self, modules: Sequence[str], environ: Mapping[str, str], set_up_child: Callable[[], None], sockets: str
    ) -> None:
        prctl.adopt_orphans()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(LOOK_SECONDS)
        self._is_ready = False
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), sockets, *modules],
                env=dict(environ),
                pass_fds=[theirs.fileno()],
                preexec_fn=set_up_child,
                process_group=0,
            )

    def fork(self, arguments: Sequence[str], environ: Mapping[str, str], descriptors: Sequence[int]) -> int:
        """Run Python with these arguments in a new child of this process; returns its pid.

        `descriptors` are inherited; their numbers there are in the variable contract.DDPJOB_INHERITED, in the same order.

        Raises:
            TemplateError: the template has ended, or a request to stop has arrived, which is blocked here.
        """
        self.wait_until_ready()
        try:
            with os.fdopen(os.memfd_create("ddpjob-request"), "w") as request:
                json.dump({"arguments": list(arguments), "environ": dict(environ)}, request)
                request.seek(0)  # also for the template, which shares the position
                socket.send_fds(self._socket, [b"\n"], [request.fileno(), *descriptors])
        except OSError as error:
            raise TemplateError from error
        return int(self._answer())

    def wait_until_ready(self) -> None:
        """Wait until the modules are imported.

        Raises:
            TemplateError: the template has ended, or a request to stop has arrived, which is blocked here.
        """
        if not self._is_ready:
            self._answer()
            self._is_ready = True

    def _answer(self) -> bytes:
        # A fork takes moments, and the ranks that it starts may have to save a state that is kept in memory.
        end = time.monotonic() + FORK_SECONDS
        try:
            while True:
                with suppress(TimeoutError):
                    answer = self._socket.recv(64)
                    break
                if is_asked_to_stop() and (not self._is_ready or time.monotonic() > end):
                    self._socket.close()  # a later request must not get the answer to this one
                    raise TemplateError
        except OSError as error:
            raise TemplateError from error
        if not answer:
            raise TemplateError
        return answer

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended."""
        return self._process.poll() is not None


def is_asked_to_stop() -> bool:
    """Whether a request to stop has arrived, which is blocked here. Other signals wait for the ranks that they are for."""
    return bool(signal.sigpending() & {signal.SIGTERM, signal.SIGINT})


def main(arguments: Sequence[str]) -> None:
    """Import the modules, then fork for each request until the launcher has ended."""
    # Slurm sends a signal to all processes of a job. This one ends with its launcher, and until then forks ranks.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    requests = socket.socket(fileno=int(arguments[0]))
    launcher = os.getppid()
    # As multiprocessing.util.get_temp_dir does. Forks inherit it.
    multiprocessing.current_process()._config["tempdir"] = arguments[1]  # type: ignore[attr-defined]  # not public
    if (use := import_all(arguments[2:])) is not None:
        sys.exit(
            f"ddpjob launcher: {use}, before the first rank is forked from this process; a forked rank could not use the GPU."
            " Have the module use it when a function is called, not when it is imported, or run the job without restarts in"
            " place"
        )
    gc.freeze()  # so that a collection in a fork does not copy their memory
    requests.send(b"ready")
    while True:
        message, inherited, _, _ = socket.recv_fds(requests, 1, 16)
        if not message:
            os._exit(0)
        request, *descriptors = inherited
        with os.fdopen(request) as file:
            program = json.load(file)
        reader, writer = os.pipe()
        first = os.fork()
        if first == 0:
            parent = os.getpid()
            if second := os.fork():
                os.write(writer, str(second).encode())
                os._exit(0)
            requests.close()
            os.close(reader)
            os.close(writer)
            _become_child_of(launcher, parent)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # what the launcher has sent meanwhile arrives now
            _end_after(partial(_run, **program, descriptors=descriptors))
        os.waitpid(first, 0)
        os.close(writer)
        if not (pid := os.read(reader, 64)):
            os._exit(1)  # it could not fork, and has said why
        requests.send(pid)
        for descriptor in (reader, *descriptors):
            os.close(descriptor)


def _become_child_of(launcher: int, parent: int) -> None:
    """Wait until the launcher has adopted this process, whose parent ends, and die with it from then on."""
    while os.getppid() == parent:
        os.sched_yield()
    prctl.die_with_parent()
    if os.getppid() != launcher:  # it has ended, before or after the adoption
        os._exit(128 + signal.SIGKILL)
    os.setpgid(0, 0)


def _run(arguments: Sequence[str], environ: Mapping[str, str], descriptors: Sequence[int]) -> None:
    """Do what Python does with these arguments: run a file, or a module after -m."""
    os.environ.clear()
    os.environ.update(environ)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    os.environ[contract.DDPJOB_INHERITED] = " ".join(map(str, descriptors))
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()  # Python's own generator is seeded in each fork, NumPy's is not
    if (current := generation.current(os.environ)) is not None:
        prctl.set_name(f"rank {os.environ[contract.RANK]}")
        current.follow_launcher()
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        if not sys.flags.safe_path:
            sys.path[0] = str(Path(arguments[0]).absolute().parent)
        runpy.run_path(arguments[0], run_name="__main__")


def _end_after(program: Callable[[], None]) -> NoReturn:
    """Run the program and exit as Python does after it, but leave the template's modules to the kernel.

    To free them would take 1.6 s, since each is copied first (measured on a busy AMD EPYC).
    """
    code = 0
    try:
        program()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if not isinstance(error.code, int | None):
            print(error.code, file=sys.stderr)
    except BaseException as error:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined] # waits for threads that are no daemons; multiprocessing ends its forks in the same way
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
