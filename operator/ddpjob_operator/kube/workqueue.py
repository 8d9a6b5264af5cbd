"""The keys that need a pass, each at most once, and never two workers on one key.

A key that is added while a worker has it waits until that worker is done; a key added for later comes at its earliest
time. What fails comes again after a delay that doubles. The queue holds no reasons: a pass looks at everything anew.
"""

import asyncio
import heapq
import random
from collections import deque

Key = tuple[str, str]
"""Namespace and name of a job."""

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 30.0
#: What is planned for years ahead (a TTL) is looked at every hour, so that the timetable never keeps much of the past.
FARTHEST_SECONDS = 3600.0


class WorkQueue:
    """A keyed queue for one event loop."""

    def __init__(self) -> None:
        self._ready: deque[Key] = deque()
        self._dirty: set[Key] = set()
        self._processing: set[Key] = set()
        self._due: dict[Key, float] = {}
        self._timetable: list[tuple[float, Key]] = []
        self._failures: dict[Key, int] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """Keys that wait for a worker now."""
        return len(self._dirty)

    def add(self, key: Key) -> None:
        """The key needs a pass now."""
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._processing:
            self._ready.append(key)
            self._wake.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """The key needs a pass by then; an earlier one that is planned already will do."""
        if seconds <= 0:
            self.add(key)
            return
        at = self._now() + min(seconds, FARTHEST_SECONDS)
        if self._due.get(key, at + 1) > at:
            self._due[key] = at
            heapq.heappush(self._timetable, (at, key))
            self._wake.set()

    def retry(self, key: Key, at_least_seconds: float = 0.0) -> float:
        """The pass failed: come again, later each time. Gives the delay."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = min(FIRST_RETRY_SECONDS * 2.0 ** (failures - 1), LAST_RETRY_SECONDS)
        delay = max(delay * random.uniform(0.75, 1.25), at_least_seconds)  # noqa: S311 jitter is no secret
        self.add_after(key, delay)
        return delay

    def forgive(self, key: Key) -> None:
        """The pass went well: the next failure is the first one again."""
        self._failures.pop(key, None)

    def drop(self, key: Key) -> None:
        """The job is gone: forget what was planned for later."""
        self._due.pop(key, None)
        self._failures.pop(key, None)

    async def get(self) -> Key:
        """The next key, once there is one; `done` gives it back."""
        while True:
            self._move_what_is_due()
            if self._ready:
                key = self._ready.popleft()
                self._dirty.discard(key)
                self._processing.add(key)
                return key
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), self._seconds_to_next())
            except TimeoutError:
                continue

    def done(self, key: Key) -> None:
        """The worker has finished with the key."""
        self._processing.discard(key)
        if key in self._dirty:
            self._ready.append(key)
            self._wake.set()

    def _move_what_is_due(self) -> None:
        now = self._now()
        while self._timetable and self._timetable[0][0] <= now:
            at, key = heapq.heappop(self._timetable)
            if self._due.get(key) == at:  # Else it was dropped, or brought forward.
                del self._due[key]
                self.add(key)

    def _seconds_to_next(self) -> float | None:
        return max(self._timetable[0][0] - self._now(), 0.0) if self._timetable else None

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
