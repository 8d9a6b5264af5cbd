"""The Python stacks of this process's threads, as text."""

import sys
import threading
import traceback
from collections.abc import Collection


def of_all_threads(*, without: Collection[str] = ()) -> str:
    """The stacks of all threads except those with these names, the main thread first, the newest call last."""
    threads = sorted(threading.enumerate(), key=lambda thread: thread is not threading.main_thread())
    frames = sys._current_frames()
    return "".join(
        f"thread {thread.name}\n{''.join(traceback.format_stack(frames[thread.ident]))}"
        for thread in threads
        if thread.ident in frames and thread.name not in without
    )
