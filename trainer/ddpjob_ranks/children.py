"""Child processes that a rank has forked: they end at SIGTERM, and never keep the rank from ending.

A child inherits the rank's handler of SIGTERM, which only notes the request. Without more, `Process.terminate()` would do
nothing, and a rank would wait for ever for a worker that ignores SIGTERM: multiprocessing sends SIGTERM to
its daemons when the interpreter exits, and then joins them without a limit.
"""

import multiprocessing
import os
import signal
import time
from functools import cache, partial
from multiprocessing import util

#: How long daemons have after SIGTERM until SIGKILL. They have nothing to save: multiprocessing may end them at any time.
GRACE_SECONDS = 1.0


@cache
def end_on_sigterm() -> None:
    """From now on SIGTERM ends the children that this process forks, as it ends any process."""
    # Python forgets what a child has received before its first line, so nothing is delivered until then.
    block = partial(signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGTERM})
    unblock = partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=_begin_child)


def _begin_child() -> None:
    signal.set_wakeup_fd(-1)  # the socket's reader is a thread of the parent
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


@cache
def never_outstay() -> None:
    """From now on a daemon that ignores SIGTERM cannot keep this process from exiting."""
    # Finalizers with a priority run before multiprocessing joins its daemons.
    util.Finalize(None, _end_daemons, exitpriority=0)


def _end_daemons() -> None:
    daemons = [child for child in multiprocessing.active_children() if child.daemon]
    for child in daemons:
        child.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for child in daemons:
        child.join(max(0.0, deadline - time.monotonic()))
        if child.is_alive():
            child.kill()
