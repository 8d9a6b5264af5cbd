"""Keeps a cache in step with the API server: list, then watch from that version on.

It keeps slim records, since the objects that kopf or a full client keeps cost ten times the memory and CPU. After a broken
stream the watch continues from the last version; if the server no longer has that version (410), a new list also shows what
was deleted meanwhile. A silent stream ends by the client's read time-out, since bookmarks come about once a minute.
"""

import asyncio
import logging
import random
import time
from contextlib import aclosing, suppress
from typing import Any

from ddpjob_operator.core.backoff import doubled
from ddpjob_operator.kube.cache.cache import Cache
from ddpjob_operator.transport.client import Client, Event
from ddpjob_operator.transport.errors import ApiError, GoneError, ThrottledError, is_refused

logger = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 0.2
#: An operator that receives no events for longer than this after an outage restarts gangs late.
LAST_BACKOFF_SECONDS = 5.0
#: How often a watched namespace is tried that is gone or in which this process may not read.
REFUSED_SECONDS = 60.0


class Informer:
    """Follows one kind of objects in one namespace, or in all."""

    def __init__(self, client: Client, cache: Cache[Any], namespace: str | None) -> None:
        """None is all namespaces."""
        self._client = client
        self._cache = cache
        self._namespace = namespace
        self._version = ""
        self._num_failures = 0
        self.synced = asyncio.Event()
        #: Whether its namespace is gone, or this process may not read there. Others go on meanwhile.
        self.is_refused = False
        self._num_rewinds = cache.num_rewinds
        self._fresh_at = time.monotonic()
        self._alive_at = time.monotonic()

    @property
    def name(self) -> str:
        """The kind of objects, for people and metrics."""
        return self._cache.resource.plural

    @property
    def stale_seconds(self) -> float:
        """Time since the server last sent anything about these objects."""
        return time.monotonic() - self._fresh_at

    @property
    def stuck_seconds(self) -> float:
        """Time since this informer last did anything, failed attempts included; large only if it hangs."""
        return time.monotonic() - self._alive_at

    async def run(self) -> None:
        """Follow the objects until cancelled."""
        while True:
            asked_seconds = 0.0
            self._alive_at = started_at = time.monotonic()
            try:
                if not self._version or self._num_rewinds != self._cache.num_rewinds:
                    await self._list()
                await self._watch()
            except GoneError as error:
                logger.info("%s: listing again: %s", self.name, error)
                self._version = ""
            except ApiError as error:
                logger.warning("%s: trying again: %s", self.name, error)
                asked_seconds = error.retry_after_seconds if isinstance(error, ThrottledError) else 0.0
                if self._namespace is not None and is_refused(error):
                    # A watch goes on after its last event only while it may go on at all.
                    self.is_refused, self._version, asked_seconds = True, "", REFUSED_SECONDS
            delay = doubled(FIRST_BACKOFF_SECONDS, self._num_failures, LAST_BACKOFF_SECONDS)
            if time.monotonic() - started_at < max(delay, asked_seconds) or not self._version:
                jittered = random.uniform(0.5, 1.0) * delay  # noqa: S311 jitter is no secret
                await asyncio.sleep(max(jittered, asked_seconds))
                self._num_failures += 1

    async def first_list(self, seconds: float) -> None:
        """Wait for the first list, which may take any time as long as parts of it arrive, or until it is refused.

        Raises TimeoutError if nothing arrives for so many seconds.
        """
        started_at = time.monotonic()
        while not (self.synced.is_set() or self.is_refused):
            if min(self.stale_seconds, time.monotonic() - started_at) > seconds:
                raise TimeoutError(f"nothing of the first list of {self.name} arrived for {seconds:.0f} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(self.synced.wait(), 1.0)

    async def _list(self) -> None:
        self._num_rewinds = self._cache.num_rewinds
        self._version, _ = await self._cache.refresh(self._client, self._namespace, heard=self._hear)
        self._hear()
        self.synced.set()

    def _hear(self) -> None:
        self._alive_at = self._fresh_at = time.monotonic()
        self.is_refused = False

    async def _watch(self) -> None:
        cache = self._cache
        async with aclosing(self._client.watch(cache.resource, self._namespace, cache.labels, self._version)) as events:
            async for event in events:
                self._hear()
                self._num_failures = 0
                self._take(event)
                self._version = event.body["metadata"]["resourceVersion"]

    def _take(self, event: Event) -> None:
        match event.type:
            case "ADDED" | "MODIFIED":
                self._cache.put(event.body)
            case "DELETED":
                self._cache.put(event.body)  # how it ended may have come with its deletion
                metadata = event.body["metadata"]
                self._cache.remove(metadata["namespace"], metadata["name"], uid=metadata["uid"])
