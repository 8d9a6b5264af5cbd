"""Divides what the operator has a fixed number of (workers, requests in flight) between namespaces.

One namespace, whatever its webhooks or nodes do, must not take all of it. A fixed part for each would leave most of it
unused, since few namespaces are busy at the same time. So a namespace may take one more while it holds less than what is
free: alone it gets a half, two get a third each, and as much as each of them has is free for the next one (the rule by
which switches share their buffers: Choudhury and Hahne, Dynamic Queue Length Thresholds, 1998).
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Shares:
    """What each namespace holds of a fixed number."""

    def __init__(self, total: int) -> None:
        """No namespace holds anything yet."""
        self._num_free = total
        self._held = Counter[str]()

    def held(self, namespace: str) -> int:
        """How many the namespace holds."""
        return self._held[namespace]

    def may_take(self, namespace: str) -> bool:
        """Whether the namespace may take one more."""
        return self._held[namespace] < self._num_free

    def take(self, namespace: str) -> None:
        """Count one more for the namespace."""
        self._held[namespace] += 1
        self._num_free -= 1

    def release(self, namespace: str) -> None:
        """Count one less for the namespace."""
        self._num_free += 1
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]


class FairSlots:
    """Slots to wait for. A free one goes to the namespace that holds the fewest, and there to the first that came."""

    def __init__(self, total: int) -> None:
        """All slots are free."""
        self._shares = Shares(total)
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def of(self, namespace: str) -> AsyncIterator[None]:
        """Wait for a slot of the namespace's share and hold it within the context."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append(turn)
        self._assign()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._shares.release(namespace)
                self._assign()

    def _assign(self) -> None:
        while namespace := min(filter(self._shares.may_take, self._waiting), key=self._shares.held, default=None):
            turns = self._waiting[namespace]
            turn = turns.popleft()
            if not turns:
                del self._waiting[namespace]
            if not turn.done():  # otherwise whoever waited was cancelled
                self._shares.take(namespace)
                turn.set_result(None)
