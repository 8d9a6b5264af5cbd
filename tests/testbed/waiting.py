"""Wait for a condition, never longer than a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from testbed.errors import TestbedError

T = TypeVar("T")


class DeadlineError(TestbedError):
    """What was waited for did not come in time."""


def wait_for(what: str, probe: Callable[[], T | None], *, seconds: float, every_seconds: float = 0.05) -> T:
    """Call `probe` until it gives something true, and give that.

    `what` ends the sentence "waited for ...". An exception of `probe` ends the wait at once.

    Raises:
        DeadlineError: `probe` gave nothing true within `seconds`.
    """
    end = time.monotonic() + seconds
    while True:
        if result := probe():
            return result
        if time.monotonic() >= end:
            raise DeadlineError(f"timed out after {seconds:g} s waiting for {what}")
        time.sleep(every_seconds)
