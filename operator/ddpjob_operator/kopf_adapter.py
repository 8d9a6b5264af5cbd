"""kopf's part in the operator: it logs in, lists and watches DDPJobs and hands each event over.

This is the only module that imports kopf. The README's decision record says why kopf does this and nothing else. Most of
what follows switches parts of kopf off: without handlers that detect changes it writes nothing, neither a finalizer nor an
annotation, and the storages below spare it the deep copies that it makes for them on every event.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, cast

import kopf
from kopf._cogs.structs.references import Insights  # Not exported, but the type of a parameter of `kopf.spawn_tasks`.

from ddpjob_operator.api import names
from ddpjob_operator.core.backoff import doubled
from ddpjob_operator.core.model import Body
from ddpjob_operator.kube.cache.cache import Cache
from ddpjob_operator.transport.access import Access

logger = logging.getLogger(__name__)

#: kopf holds nothing that would be lost if it did not end in this time.
STOP_SECONDS = 2.0
#: kopf ends for each error of a watch except 410, and where it may not watch (403). It is started again after a pause, which
#: doubles while it ends soon: that a namespace is gone stays as it is.
FIRST_PAUSE_SECONDS = 1.0
LAST_PAUSE_SECONDS = 60.0


class JobFeed:
    """Puts kopf's events into the cache of DDPJobs and measures whether they still arrive.

    kopf's watch can end without an error (nolar/kopf#1276). On a quiet cluster silence is normal, so it is measured against
    other sources: the answers to our own status writes and the audit show versions that kopf must deliver, too.
    """

    def __init__(self, jobs: Cache[Any]) -> None:
        self._jobs = jobs
        self._delivered: dict[str, int] = {}
        self._behind_since: dict[str, float] = {}

    def take(self, event_type: str | None, body: Body) -> None:
        """Take in an event; its type is None for the objects of kopf's first list."""
        metadata = body["metadata"]
        namespace, version = metadata["namespace"], int(metadata["resourceVersion"])
        self._delivered[namespace] = max(version, self._delivered.get(namespace, 0))
        self._behind_since.pop(namespace, None)
        if event_type == "DELETED":
            self._jobs.remove(namespace, metadata["name"], uid=metadata["uid"])
        else:
            self._jobs.put(body)

    def silent_seconds(self) -> float:
        """For how long an event of some namespace has been due without arriving. Call it every few seconds."""
        now, latest = time.monotonic(), self._jobs.latest_versions()
        # Nothing is due of a namespace whose last job the audit has dropped.
        self._behind_since = {known: since for known, since in self._behind_since.items() if known in latest}
        for namespace, version in latest.items():
            if version > self._delivered.get(namespace, 0):
                self._behind_since.setdefault(namespace, now)
            else:
                self._behind_since.pop(namespace, None)
        return now - min(self._behind_since.values(), default=now)


class KopfWatch:
    """kopf as one part of the process, which runs and is cancelled like any other part."""

    def __init__(self, access: Access, scope: str | None, feed: JobFeed) -> None:
        """Watch this namespace, or the whole cluster (None)."""
        self._access = access
        self._namespaces: Collection[str] = () if scope is None else (scope,)
        self._feed = feed
        self._watches = asyncio.Event()

    @property
    def name(self) -> str:
        """What it watches, for people."""
        return "kopf" + "".join(f" in {namespace}" for namespace in self._namespaces)

    async def keep_running(self, started: Callable[[], None], ended: Callable[[Exception], Awaitable[None]]) -> None:
        """Run kopf, and again whenever it ends; its ends must not become those of this process.

        `ended` is called after each end, before the pause.
        """
        num_ends_in_a_row = 0
        while True:
            started_at = time.monotonic()
            error = await self._end(started)
            if time.monotonic() - started_at > LAST_PAUSE_SECONDS:
                num_ends_in_a_row = 0
            pause = doubled(FIRST_PAUSE_SECONDS, num_ends_in_a_row, LAST_PAUSE_SECONDS)
            num_ends_in_a_row += 1
            logger.warning("%s has ended and is started again in %.0f s: %r", self.name, pause, error)
            await ended(error)
            await asyncio.sleep(pause)

    async def _end(self, started: Callable[[], None]) -> Exception:
        """Run kopf until it ends, and give the error with which it did."""
        try:
            await self.run(started)
        except Exception as error:  # noqa: BLE001 whatever kopf ends with, it is started again
            return error
        return LookupError("it ended without an error")

    async def run(self, started: Callable[[], None]) -> None:
        """Run until kopf ends, which it should not.

        `started` is called once kopf has put its own signal handlers in place of the process's. Not by `kopf.run_tasks`,
        which at its end cancels every task that was created in the event loop since its start, ours included.
        """
        insights = Insights()
        tasks = await kopf.spawn_tasks(
            registry=_registry(self._access, self._feed),
            settings=_settings(),
            # Unused without peering; left out, kopf looks the user's name up, and a numeric user has none.
            identity=cast("Any", names.MANAGER),
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            insights=insights,
        )
        started()
        ready = asyncio.create_task(insights.ready_resources.wait())
        try:
            await asyncio.wait((*tasks, ready), return_when=asyncio.FIRST_COMPLETED)
            # kopf discovers resources once. An API server that has just started may not serve custom resources at that moment;
            # kopf then watches nothing, without an error.
            if ready.done() and not insights.watched_resources:
                raise LookupError(f"the API server served {names.PLURAL} a moment ago and does not now")
            if ready.done():
                self._watches.set()
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*tasks, ready):
                task.cancel()
            ended, _ = await asyncio.wait(tasks, timeout=STOP_SECONDS)
        for task in ended:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def wait_for_watch(self) -> None:
        """Wait until kopf watches DDPJobs, or tries to."""
        await self._watches.wait()


def _registry(access: Access, feed: JobFeed) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(server=access.server, aiohttp_session=access.session())

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def job_changed(event: kopf.RawEvent, **_: Any) -> None:
        try:
            feed.take(event["type"], event["object"])
        except Exception:  # kopf does not repeat an event whose handler raises; the audit repairs the loss.
            logger.exception("an event of a DDPJob cannot be taken in")

    return registry


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.scanning.disabled = True  # Otherwise it lists and watches every CRD and namespace of the cluster.
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.persistence.progress_storage = _NoProgress()
    settings.queueing.idle_timeout = 1.0
    settings.watching.chunk_size = 10  # The objects of a chunk are in memory together, and each may have a megabyte.
    settings.watching.server_timeout = 300
    settings.networking.request_timeout = 30
    settings.process.ultimate_exiting_timeout = None  # Otherwise it kills the process ten minutes after it was stopped.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # Otherwise it logs a line for every event.
    return settings


class _NoDiffs(kopf.DiffBaseStorage):
    """Stores no state to compare with: kopf computes differences for every event, and no handler uses them."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        """Store nothing."""


class _NoProgress(kopf.ProgressStorage):
    """Stores no progress of handlers: the only handler has none."""

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        """Store nothing."""

    def purge(self, **_: Any) -> None:
        """Store nothing."""

    def touch(self, **_: Any) -> None:
        """Store nothing."""

    def clear(self, *, essence: Any) -> Any:
        return essence
