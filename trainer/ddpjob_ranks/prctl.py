"""What a process asks of the Linux kernel for itself, which Python has no function for (prctl(2))."""

import ctypes
import signal

#: linux/prctl.h
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36

_LIBC = ctypes.CDLL(None, use_errno=True)  # loaded here, so not between a fork and its exec


def die_with_parent() -> None:
    """From now on this process is killed when its parent dies. A parent that has died before goes unnoticed."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def set_name(name: str) -> None:
    """Give this process the name that `ps` and `top` show."""
    _LIBC.prctl(PR_SET_NAME, name.encode())


def adopt_orphans() -> None:
    """Make this process the parent of those of its descendants whose parent ends."""
    _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
