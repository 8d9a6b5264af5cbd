"""The parent of one pod's processes: what a container is on a cluster, without one. Standard library only.

Runs a program, passes SIGTERM on to it, and leaves no descendant behind: neither when the program ends (as in a
container, whose processes end with its main process), nor when whoever started the reaper goes away, even by SIGKILL.
A parent-death signal alone cannot do that, since it reaches children but no grandchildren. So the reaper

- reads its standard input, on which nothing ever comes: its end means that the starter has gone or wants an end;
- is a child subreaper (prctl(2)): a descendant whose parent has died becomes its child, whatever session it is in, and
  when it has no child left, it has no descendant left;
- lives in a session of its own, where signals to the starter's terminal or process group do not reach it.

`python reaper.py <program> <arguments>`; it exits with the program's exit code, or 128 + n if it died by signal n.
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

#: Exit code where the program cannot be started; containerd's.
CANNOT_START = 128

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def main(command: Sequence[str]) -> int:
    """Run `command` to its end, or until standard input ends; then kill what is left of its descendants."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
    wakeup = _wake_up_on(signal.SIGCHLD, signal.SIGTERM)
    try:
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a program may signal its own process group
            preexec_fn=_die_with(os.getpid(), prctl),  # safe: there is a single thread
        )
    except OSError as error:
        print(f"cannot start {command[0]!r}: {error.strerror}", file=sys.stderr)
        return CANNOT_START
    while True:
        readable, _, _ = select.select([wakeup, sys.stdin], [], [])
        if sys.stdin in readable:
            _kill_descendants()
            return 128 + signal.SIGKILL
        for signal_number in os.read(wakeup, 4096):
            if signal_number == signal.SIGTERM:
                os.kill(program.pid, signal.SIGTERM)  # not Popen.send_signal, which may take the exit status
        if (code := _reap(program.pid)) is not None:
            _kill_descendants()
            return code


def _wake_up_on(*signals: signal.Signals) -> int:
    """A file descriptor that gives one byte, its number, for each of these signals received."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing)
    for signal_number in signals:
        signal.signal(signal_number, _do_nothing)
    return reading


def _do_nothing(signal_number: int, frame: FrameType | None) -> None:
    """A handler, so that the signal wakes `select`; the exec of a child resets it to the default action."""


def _die_with(parent: int, prctl: Callable[..., int]) -> Callable[[], None]:
    """For the child between fork and exec: be killed if the reaper itself is killed."""

    def set_up_child() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before prctl
            os._exit(128 + signal.SIGKILL)

    return set_up_child


def _reap(program_pid: int) -> int | None:
    """Take the status of every process that has ended, adopted ones included; the program's exit code if it has."""
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
    """Kill until no child is left; a child that dies makes its own children ours."""
    while True:
        for pid in _children(os.getpid()):
            with suppress(PermissionError):  # a set-uid program of another user; all that remains is to wait for it
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children(parent: int) -> list[int]:
    """Direct children, from /proc: `/proc/<pid>/task/<tid>/children` is an option of the kernel, `stat` is not."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal() and _parent(entry) == parent]


def _parent(process: Path) -> int | None:
    try:
        stat = (process / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended
        return None
    return int(stat.rpartition(")")[2].split()[1])  # after "(name)", which may hold anything: state, then parent


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
