"""The keys to reconcile, each at most once, and never two workers on one key.

Jobs that were created, edited or deleted and gangs that lost a rank come before others: in a storm of new jobs all get their
pods before anything is written about the first, and a gang that has lost a rank waits behind neither. A key that is added
while a worker has it waits until that worker is done; a key added for later comes at its earliest time. What fails
is retried after a delay that doubles. The queue holds no reasons: a reconcile looks at everything again.

Namespaces share the workers: a namespace whose webhooks hang keeps half of them busy at most.
"""

import asyncio
import heapq
import itertools
import random
from collections import deque
from collections.abc import Iterable

from ddpjob_operator.core.backoff import doubled
from ddpjob_operator.kube.engine.queue_metrics import QueueMetrics
from ddpjob_operator.kube.fair_share import Shares
from ddpjob_operator.kube.keys import Key

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 30.0
#: What is planned for years ahead (a TTL) is looked at every hour: event loops refuse timers of more than a day.
FARTHEST_SECONDS = 3600.0


class WorkQueue:
    """A keyed queue for one event loop."""

    def __init__(self, num_workers: int, name: str = "ddpjob", *, is_open: bool = True) -> None:
        """`num_workers` is how many call `get`; `name` is the label of the queue's metrics.

        A queue that is not open takes no keys until `open` is called.
        """
        self._is_open = is_open
        self._shares = Shares(num_workers)
        self._ready: dict[str, list[tuple[bool, int, Key]]] = {}
        """By namespace, as heaps."""
        self._turns: dict[bool, list[tuple[int, int, str]]] = {False: [], True: []}
        """Namespaces in the order in which they come next, as heaps: of those with an urgent key (False), and of the others.

        An entry is how many workers the namespace has and the number of its first key. One that is no longer true is
        dropped when it comes up, so that the next key costs the same however many namespaces wait.
        """
        self._idle = deque[asyncio.Future[None]]()
        self._numbers = itertools.count()
        self._dirty: set[Key] = set()
        self._first: set[Key] = set()
        self._processing: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._metrics = QueueMetrics(name)

    def __len__(self) -> int:
        """Keys that wait for a worker now."""
        return len(self._dirty)

    def open(self, keys: Iterable[Key]) -> None:
        """Take keys from now on, beginning with these. Until then nobody takes any out, as on a standby."""
        self._is_open = True
        for key in keys:
            self.add(key)

    def add(self, key: Key, *, first: bool = False) -> None:
        """Reconcile the key now, before all that were not added as `first`."""
        if not self._is_open:
            return
        if key in self._dirty and (key in self._first or not first):
            return
        self._metrics.added(key)
        self._dirty.add(key)
        if first:
            self._first.add(key)
        if key not in self._processing:
            self._put(key)

    def is_urgent(self, key: Key) -> bool:
        """Whether the key was added as `first` since a worker took it."""
        return key in self._processing and key in self._first

    def add_after(self, key: Key, seconds: float) -> None:
        """Reconcile the key by then, unless it is planned earlier already."""
        if seconds <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + min(seconds, FARTHEST_SECONDS)
        planned = self._timers.get(key)
        if planned is None or planned.when() > at:
            if planned is not None:
                planned.cancel()
            self._timers[key] = loop.call_at(at, self._add_due, key)

    def retry(self, key: Key, at_least_seconds: float = 0.0) -> float:
        """Retry after a failed reconcile, later each time. Returns the delay."""
        num_before = self._failures.get(key, 0)
        self._failures[key] = num_before + 1
        self._metrics.retried()
        delay = doubled(FIRST_RETRY_SECONDS, num_before, LAST_RETRY_SECONDS)
        delay = max(delay * random.uniform(0.75, 1.25), at_least_seconds)  # noqa: S311 jitter is no secret
        self.add_after(key, delay)
        return delay

    def reset_back_off(self, key: Key) -> None:
        """Forget earlier failures after a reconcile that succeeded: the next one is the first again."""
        self._failures.pop(key, None)

    def drop(self, key: Key) -> None:
        """Forget what was planned for the job, which no longer exists."""
        if planned := self._timers.pop(key, None):
            planned.cancel()
        self._failures.pop(key, None)

    async def get(self) -> Key:
        """Wait for the next key. The worker calls `done` when it has finished with it."""
        while (key := self._next()) is None:
            turn = asyncio.get_running_loop().create_future()
            self._idle.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._wake()
                raise
        self._dirty.discard(key)
        self._first.discard(key)
        self._processing.add(key)
        self._shares.take(key[0])
        self._offer(key[0])
        self._metrics.taken(key)
        if self._ready:
            self._wake()
        return key

    def done(self, key: Key) -> None:
        """The worker has finished with the key."""
        self._processing.discard(key)
        self._shares.release(key[0])
        self._offer(key[0])
        self._metrics.done(key)
        if key in self._dirty:
            self._put(key)
        elif self._ready:
            self._wake()

    def _next(self) -> Key | None:
        """The most urgent key of a namespace that may have one more worker, of those that have the fewest."""
        for is_later, turns in self._turns.items():
            while turns:
                held, number, namespace = turns[0]
                if self._turn_of(namespace) == (is_later, held, number):
                    if not self._shares.may_take(namespace):
                        break  # then neither may those behind it, which have as many workers or more
                    heapq.heappop(turns)
                    return heapq.heappop(self._ready[namespace])[2]
                heapq.heappop(turns)
        return None

    def _turn_of(self, namespace: str) -> tuple[bool, int, int] | None:
        """Whether its first key is a later one, how many workers it has, and the number of the key; None without a key."""
        heap = self._ready.get(namespace)
        if heap is None:
            return None
        while heap and not self._is_waiting(heap[0][2]):
            heapq.heappop(heap)  # it was moved to the front and has been handled
        if not heap:
            del self._ready[namespace]
            return None
        is_later, number, _ = heap[0]
        return is_later, self._shares.held(namespace), number

    def _offer(self, namespace: str) -> None:
        """Note when the turn of the namespace comes, after its keys or its workers have changed."""
        if (turn := self._turn_of(namespace)) is not None:
            is_later, held, number = turn
            heapq.heappush(self._turns[is_later], (held, number, namespace))

    def _is_waiting(self, key: Key) -> bool:
        return key in self._dirty and key not in self._processing

    def _put(self, key: Key) -> None:
        heapq.heappush(self._ready.setdefault(key[0], []), (key not in self._first, next(self._numbers), key))
        self._offer(key[0])
        self._wake()

    def _wake(self) -> None:
        """Let one worker look for a key."""
        while self._idle:
            turn = self._idle.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _add_due(self, key: Key) -> None:
        del self._timers[key]
        self.add(key)
