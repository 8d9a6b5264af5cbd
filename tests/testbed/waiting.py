"""Wait for a condition, never longer than a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from testbed.errors import TestbedError

T = TypeVar("T")

#: Between two looks: from the first to those after some seconds. A look may be a kubectl, which takes 0.1 s of CPU.
SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 0.4


class DeadlineError(TestbedError):
    """What was waited for did not come in time."""


def wait_for(
    what: str, probe: Callable[[], T | None], *, seconds: float = 300, every_seconds: float | None = None
) -> T:
    """Call `probe` until it gives something true, and give that. It is called less often the longer it takes.

    `what` ends the sentence "waited for ...". An exception of `probe` ends the wait at once.

    Raises:
        DeadlineError: `probe` gave nothing true within `seconds`.
    """
    end, pause_seconds = time.monotonic() + seconds, SHORTEST_PAUSE_SECONDS
    while True:
        if result := probe():
            return result
        if time.monotonic() >= end:
            raise DeadlineError(f"timed out after {seconds:g} s waiting for {what}")
        time.sleep(every_seconds or pause_seconds)
        pause_seconds = min(1.2 * pause_seconds, LONGEST_PAUSE_SECONDS)
