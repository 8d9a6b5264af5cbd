"""Puts the operator together: kopf as the front door, our own caches, workers and probes beside it.

kopf logs in, lists and watches DDPJobs and hands each event over: nothing else. It has no handlers that detect changes, so
it writes nothing: no finalizer, no annotation. Everything here runs in one event loop and ends with exit code 1 as soon
as any part of it ends, since a Deployment restarts a process better than a process restarts its parts.

Of several operators all watch and keep their caches, and one works: the holder of the Lease. Its loss is the end of a part
like any other, and the process comes back as a standby.
"""

import asyncio
import gc
import logging
import signal
import time
from collections.abc import Coroutine
from typing import Any, cast

import kopf
from kopf._cogs.structs.references import Insights  # not exported, but the type of one of `spawn_tasks`' arguments

from ddpjob_operator.api import names
from ddpjob_operator.kube.access import Access, load_access
from ddpjob_operator.kube.actuator import Actuator
from ddpjob_operator.kube.audit import Audit
from ddpjob_operator.kube.cache import Cache
from ddpjob_operator.kube.client import Client
from ddpjob_operator.kube.errors import ApiError, NotFoundError
from ddpjob_operator.kube.events import EventRecorder
from ddpjob_operator.kube.expectations import Expectations
from ddpjob_operator.kube.feed import JobFeed
from ddpjob_operator.kube.health import Health
from ddpjob_operator.kube.informer import Informer
from ddpjob_operator.kube.lease import Alone, Elector, Leadership
from ddpjob_operator.kube.progress import ProgressReader
from ddpjob_operator.kube.questions import Questions
from ddpjob_operator.kube.reconciler import Reconciler
from ddpjob_operator.kube.rejections import Rejections
from ddpjob_operator.kube.resources import DDPJOBS
from ddpjob_operator.kube.status_writer import StatusWriter
from ddpjob_operator.kube.store import Store
from ddpjob_operator.kube.workqueue import WorkQueue
from ddpjob_operator.settings import Settings

logger = logging.getLogger(__name__)

#: How long the CRD, the API server and the first lists may take before the process gives up and is started anew.
START_SECONDS = 120.0
#: Our own parts end in milliseconds; the pod is killed after ten seconds.
STOP_SECONDS = 5.0
#: kopf stops at once when nothing else runs in its loop; it holds nothing that would be lost if it did not.
KOPF_STOP_SECONDS = 2.0


async def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT (0), or until a part of it fails (1)."""
    stop = asyncio.Event()
    _stop_on_signals(stop)
    try:
        access = await load_access()
    except ValueError as error:
        logger.error("%s", error)  # noqa: TRY400 a trace would say nothing about the surroundings
        return 1
    # The Lease has connections of its own: a renewal must not wait behind a thousand pods.
    async with Client(access.configuration) as lease_client:
        leadership = _leadership(settings, lease_client)
        async with Client(access.configuration, may_write=leadership.held) as client:
            operator = _Operator(settings, access, client, leadership, stop)
            health = await operator.health.serve(settings.health_port)
            try:
                return await operator.run()
            finally:
                await health.cleanup()


def _leadership(settings: Settings, client: Client) -> Leadership:
    if settings.lease is None:
        return Alone()
    return Elector(client, settings.lease.namespace, settings.lease.name, settings.identity, settings.lease_seconds)


class _Operator:
    """The parts, and the order in which they start and stop."""

    def __init__(
        self, settings: Settings, access: Access, client: Client, leadership: Leadership, stop: asyncio.Event
    ) -> None:
        self._settings = settings
        self._access = access
        self._client = client
        self._leadership = leadership
        self._stop = stop
        self._kopf_stop = asyncio.Event()
        self._kopf_insights = Insights()
        self._queue = WorkQueue()
        self._rejections = Rejections()
        self._store = Store(self._queue.add, self._ask_again)
        self._feed = JobFeed(self._store.jobs)
        self._audit = Audit(client, settings.scopes, settings.audit_interval_seconds)
        self._informers = [
            Informer(client, cache, scope)
            for cache in (self._store.pods, self._store.services)
            for scope in settings.scopes
        ]
        self._questions = Questions(client, self._queue.add)
        self._progress = ProgressReader(client, settings.progress_interval_seconds, self._queue.add)
        self.health = Health(self._store, self._queue, self._informers, self._feed, leadership.held)
        self._events = EventRecorder(client, settings.identity)
        expectations = Expectations()
        self._reconciler = Reconciler(
            client=client,
            queue=self._queue,
            store=self._store,
            expectations=expectations,
            rejections=self._rejections,
            actuator=Actuator(client, self._store, expectations, self._rejections),
            status_writer=StatusWriter(client, self._store, self._events),
            questions=self._questions,
            progress=self._progress,
            trainer_image=settings.trainer_image,
        )
        self._parts: set[asyncio.Task[Any]] = set()
        self._ended = asyncio.Queue[asyncio.Task[Any]]()

    async def run(self) -> int:
        """Start the parts one after the other, then wait for the first one to end, which none should."""
        asking_to_stop = self._start("stop", self._stop.wait())
        self._start("credentials", self._access.keep_fresh())
        self._start("loop lag", self.health.measure_loop_lag())
        starting = self._start("start", self._start_in_order())
        while True:
            task = await self._ended.get()
            if asking_to_stop.done():
                logger.info("stopping")
                code = 0
                break
            if task is not starting or task.cancelled() or task.exception() is not None:
                logger.error("%s has ended: %s", task.get_name(), _why(task))
                code = 1
                break
        await self._stop_parts()
        return code

    async def _start_in_order(self) -> None:
        await _in_time(self._wait_for_the_crd(), "the API server to serve DDPJobs: install the CRD")
        self._start("watch of the Lease", self._leadership.follow())
        leads_from_the_start = await self._leadership.try_acquire()
        if leads_from_the_start:
            self._start("Lease", self._leadership.keep())
        await self._fill_the_caches()
        self.health.ready = True
        where = ", ".join(self._settings.namespaces) or "all namespaces"
        logger.info("watching DDPJobs of %s; %d known", where, len(self._store.jobs))
        if not leads_from_the_start:  # Else all that was just read is from after it was acquired.
            logger.info("standing by")
            await self._leadership.acquire()
            self._start("Lease", self._leadership.keep())
            await _in_time(self._read_past_the_caches(), "what the former leader has written")
        self._start("progress", self._progress.run())
        self._start("events", self._events.run())
        for number in range(self._settings.workers):
            self._start(f"worker {number}", self._reconciler.work())
        logger.info("running DDPJobs of %s", where)

    async def _fill_the_caches(self) -> None:
        """First the jobs, then their pods: a job whose pods all exist must never be seen beside an older list of pods."""
        await _in_time(self._read(self._store.jobs), "the first list of DDPJobs")
        for informer in self._informers:
            self._start(f"watch of {informer.name}", informer.run())
            await _in_time(informer.synced.wait(), f"the first list of {informer.name}")
        # A full collection walks all that was just read, and would do so for every few thousand objects more
        # (measured: 25 to 65 % of the CPU time of a burst of events).
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        self._start("kopf", self._run_kopf())
        await _in_time(self._wait_for_kopf_to_find_jobs(), "kopf to ask the API server what it serves")
        self._start("audit", self._audit.run((self._store.jobs, self._store.pods, self._store.services)))

    async def _read_past_the_caches(self) -> None:
        """What a leader acts on must be from after it became one: pods are made only of an attempt that was read then."""
        await self._read(self._store.jobs)
        await asyncio.gather(self._read(self._store.pods), self._read(self._store.services))

    async def _wait_for_the_crd(self) -> None:
        """Wait, since kopf would not notice it coming later."""
        while True:
            try:
                if await self._client.serves(DDPJOBS):
                    return
                missing = f"{names.API_VERSION} has no {names.PLURAL}"
            except NotFoundError:
                missing = f"{names.API_VERSION} is unknown"
            except ApiError as error:
                missing = str(error)
            logger.info("waiting for the API server to serve DDPJobs (is the CRD installed?): %s", missing)
            await asyncio.sleep(1.0)

    async def _wait_for_kopf_to_find_jobs(self) -> None:
        """Look, since kopf asks once: where a starting API server does not serve DDPJobs again yet, it watches nothing."""
        await self._kopf_insights.ready_resources.wait()
        if not self._kopf_insights.watched_resources:
            raise LookupError(f"the API server served {names.PLURAL} a moment ago and does not now; start again")

    async def _read(self, cache: Cache[Any]) -> None:
        while True:
            try:
                await self._audit.compare(cache)
            except ApiError as error:
                logger.warning("waiting for a list of %s: %s", cache.resource.plural, error)
                await asyncio.sleep(1.0)
            else:
                return

    async def _run_kopf(self) -> None:
        existing = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=_registry(self._access, self._feed),
            settings=_kopf_settings(),
            # Standalone, so it names nobody; left out, kopf asks for the user's name, and our uid has no passwd entry.
            identity=cast("Any", names.MANAGER),
            clusterwide=not self._settings.namespaces,
            namespaces=self._settings.namespaces,
            stop_flag=self._kopf_stop,
            insights=self._kopf_insights,
        )
        _stop_on_signals(self._stop)  # kopf has put its own handlers there.
        await kopf.run_tasks(tasks, ignored=existing)

    def _ask_again(self, namespace: str, name: str) -> None:
        for key in self._rejections.name_is_free(namespace, name):
            self._queue.add(key)

    def _start(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name)
        self._parts.add(task)
        task.add_done_callback(self._ended.put_nowait)
        return task

    async def _stop_parts(self) -> None:
        """First all that writes, then the Lease, so that another begins at once; kopf last, which takes its time."""
        self.health.ready = False
        doors = {task for task in self._parts if task.get_name() == "kopf"}
        ours = self._parts - doors
        await asyncio.gather(_cancel(ours), self._questions.stop(), self._progress.stop(), return_exceptions=True)
        await self._leadership.release()
        self._kopf_stop.set()
        if doors:
            await asyncio.wait(doors, timeout=KOPF_STOP_SECONDS)


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel until all have ended: a wait that is over in that very moment may swallow a cancellation (Python 3.11)."""
    deadline = time.monotonic() + STOP_SECONDS
    while tasks and time.monotonic() < deadline:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=0.1)
    for task in tasks:
        logger.error("%s does not end", task.get_name())


async def _in_time(work: Coroutine[Any, Any, Any], what: str) -> None:
    try:
        await asyncio.wait_for(work, START_SECONDS)
    except TimeoutError:
        raise TimeoutError(f"waited {START_SECONDS:.0f} s in vain for {what}") from None


def _registry(access: Access, feed: JobFeed) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(server=access.server, aiohttp_session=access.session())

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def job_changed(event: kopf.RawEvent, **_: Any) -> None:
        try:
            feed.take(event["type"], event["object"])
        except Exception:  # kopf does not call again for what raises; the audit does
            logger.exception("an event of a DDPJob could not be taken in")

    return registry


def _kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.scanning.disabled = True  # Else it lists and watches every CRD and namespace of the cluster.
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.persistence.progress_storage = _NoProgress()
    settings.queueing.idle_timeout = 1.0
    settings.watching.chunk_size = 500
    settings.watching.server_timeout = 300
    settings.networking.request_timeout = 30
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # Else a line for every event.
    return settings


class _NoDiffs(kopf.DiffBaseStorage):
    """kopf computes diffs for every event, with deep copies; nobody here asks for one."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        """Keep nothing."""


class _NoProgress(kopf.ProgressStorage):
    """kopf's own handlers have no state to keep."""

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        """Keep nothing."""

    def purge(self, **_: Any) -> None:
        """Keep nothing."""

    def touch(self, **_: Any) -> None:
        """Keep nothing."""

    def clear(self, *, essence: Any) -> Any:
        return essence


def _stop_on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)


def _why(task: asyncio.Task[Any]) -> str:
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return f"{type(error).__name__}: {error}" if error else "without a reason"
