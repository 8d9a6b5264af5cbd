"""The parent of one pod's processes, in place of a container. It uses the standard library only.

The reaper runs a program, forwards SIGTERM to it, and leaves no descendant running: neither when the program ends (the
processes of a container also end with its main process), nor when the process that started the reaper ends, even by
SIGKILL. A parent-death signal is not enough, because it reaches children and not grandchildren. Therefore the reaper

- reads its standard input, to which nothing is written: the end of the input means that its parent ended or closed it;
- is a child subreaper (prctl(2)): a descendant whose parent ends becomes its child, in whatever session it is. When the
  reaper has no child left, it has no descendant left;
- has its own session, so that signals to the terminal or process group of its parent do not reach it.

Usage: `python reaper.py <program> <arguments>`. The exit code is that of the program, or 128 + n if signal n killed it.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

#: Exit code if the program cannot be started, as with containerd.
CANNOT_START = 128
#: Begins the message of that.
NO_START = "cannot start "

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def main(command: Sequence[str]) -> int:
    """Run `command` until it ends or standard input ends, then kill all descendants that are left."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
    wakeup = _wake_up_on(signal.SIGCHLD, signal.SIGTERM)
    try:
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a program may signal its own process group
            preexec_fn=_die_with(os.getpid(), prctl),  # safe, because this process has one thread
        )
    except OSError as error:
        print(f"{NO_START}{command[0]!r}: {(error.strerror or '').lower()}", file=sys.stderr)
        return CANNOT_START
    while True:
        readable, _, _ = select.select([wakeup, sys.stdin], [], [])
        if sys.stdin in readable:
            _kill_descendants()
            return 128 + signal.SIGKILL
        for signal_number in os.read(wakeup, 4096):
            if signal_number == signal.SIGTERM:
                os.kill(
                    program.pid, signal.SIGTERM
                )  # Popen.send_signal would poll, and could take the exit status from _reap
        if (code := _reap(program.pid)) is not None:
            _kill_descendants()
            return code


def _wake_up_on(*signals: signal.Signals) -> int:
    """A file descriptor that yields the number of each of these signals, one byte for each one received."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing)
    for signal_number in signals:
        signal.signal(signal_number, _do_nothing)
    return reading


def _do_nothing(signal_number: int, frame: FrameType | None) -> None:
    """Handle the signal, so that it wakes `select`. A child resets handlers to the default action at exec."""


def _die_with(parent: int, prctl: Callable[..., int]) -> Callable[[], None]:
    """A function for the child between fork and exec, so that the child is killed if the reaper is killed."""

    def set_up_child() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the reaper ended before prctl
            os._exit(128 + signal.SIGKILL)

    return set_up_child


def _reap(program_pid: int) -> int | None:
    """Reap all children that have ended, and give the program's exit code if it is one of them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == program_pid:
            returncode = os.waitstatus_to_exitcode(status)
            code = returncode if returncode >= 0 else 128 - returncode


def _kill_descendants() -> None:
    """Kill children until none is left. When a child ends, its own children become children of the reaper."""
    while True:
        for pid in _children(os.getpid()):
            with suppress(PermissionError):  # a setuid program of another user, which can only be waited for
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children(parent: int) -> list[int]:
    """Direct children. /proc/<pid>/stat is always there; /proc/<pid>/task/<tid>/children is a kernel option."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal() and _parent(entry) == parent]


def _parent(process: Path) -> int | None:
    try:
        stat = (process / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended
        return None
    return int(
        stat.rpartition(")")[2].split()[1]
    )  # after "(name)", which may contain any character, come state and parent


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
