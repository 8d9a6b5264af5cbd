"""Assembles the operator: kopf watches DDPJobs; caches, workers and probes of our own do the rest.

Everything runs in one event loop. As soon as any part ends the process ends with exit code 1, since a Deployment restarts a
process more reliably than a process restarts its parts.

Of several operators all watch and keep their caches, and one works: the holder of the Lease. Losing the Lease is the end of
a part like any other, and the process comes back as a standby.
"""

import asyncio
import gc
import logging
import signal
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from ddpjob_operator.api import names
from ddpjob_operator.core.model import Watched
from ddpjob_operator.core.render.network_policy import WATCHED_POLICIES
from ddpjob_operator.kopf_adapter import JobFeed, KopfWatch
from ddpjob_operator.kube import metrics
from ddpjob_operator.kube.cache.audit import Audit
from ddpjob_operator.kube.cache.cache import Cache
from ddpjob_operator.kube.cache.informer import Informer
from ddpjob_operator.kube.cache.store import Store
from ddpjob_operator.kube.engine.actuator import Actuator
from ddpjob_operator.kube.engine.event_recorder import EventRecorder
from ddpjob_operator.kube.engine.expectations import Expectations
from ddpjob_operator.kube.engine.job_memory import JobMemories
from ddpjob_operator.kube.engine.reconciler import Reconciler
from ddpjob_operator.kube.engine.rejections import Rejections
from ddpjob_operator.kube.engine.status_writer import StatusWriter
from ddpjob_operator.kube.engine.workqueue import WorkQueue
from ddpjob_operator.kube.health import Health
from ddpjob_operator.kube.lease import Elector, Leadership, NoLeaderElection
from ddpjob_operator.kube.lookups.lookups import Lookups
from ddpjob_operator.kube.lookups.progress_reader import ProgressReader
from ddpjob_operator.kube.rights import may_make_network_policies
from ddpjob_operator.kube.scheduling import discover
from ddpjob_operator.scheduling.interface import Provider
from ddpjob_operator.settings import Settings
from ddpjob_operator.transport.access import Access, load_access
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ApiError, NotFoundError
from ddpjob_operator.transport.resources import DDPJOBS

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: The CRD and the API server may each take this long, and the first lists from one part to the next, before the process gives up
#: and is restarted.
START_SECONDS = 120.0
#: Our own parts end in milliseconds; the pod is killed after ten seconds.
STOP_SECONDS = 5.0


async def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT (0), or until a part of it fails (1)."""
    stop = asyncio.Event()
    _stop_on_signals(stop)
    try:
        access = await load_access()
    except ValueError as error:
        logger.error("%s", error)  # noqa: TRY400 a traceback would not say what is missing in the environment
        return 1
    # The Lease has connections of its own: a renewal must not wait behind a thousand pods.
    async with Client(access.configuration, on_response=metrics.count_request) as lease_client:
        leadership = _leadership(settings, lease_client)
        async with Client(access.configuration, may_write=leadership.held, on_response=metrics.count_request) as client:
            operator = _Operator(settings, access, client, lease_client, leadership, stop)
            async with operator.health.served(settings.health_port, settings.probe_socket):
                return await operator.run()


def _leadership(settings: Settings, client: Client) -> Leadership:
    if settings.lease is None:
        return NoLeaderElection()
    return Elector(client, settings.lease.namespace, settings.lease.name, settings.identity, settings.lease_seconds)


class _Operator:
    """The parts, and the order in which they start and stop."""

    def __init__(
        self,
        settings: Settings,
        access: Access,
        client: Client,
        lease_client: Client,
        leadership: Leadership,
        stop: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._access = access
        self._client = client
        self._lease_client = lease_client
        self._leadership = leadership
        self._stop = stop
        self._queue = WorkQueue(settings.workers, is_open=False)
        self._memories = JobMemories()
        self._rejections = Rejections(self._memories)
        self._store = Store(self._queue.add, self._retry_creation)
        feed = JobFeed(self._store.jobs)
        self._kopfs = [KopfWatch(access, scope, feed) for scope in settings.scopes]
        self._audit = Audit(client, settings.scopes, settings.audit_interval_seconds)
        self._informers = [
            Informer(client, cache, scope)
            for cache in (self._store.pods, self._store.services)
            for scope in settings.scopes
        ]
        self._lookups = Lookups(client, self._queue.add)
        self._progress = ProgressReader(client, settings.progress_interval_seconds, self._queue.add)
        self.health = Health(
            self._store, self._informers, feed.silent_seconds, leadership.held, max_jobs=settings.job_gauges
        )
        self._events = EventRecorder(client, settings.identity, self._memories)
        self._parts: set[asyncio.Task[Any]] = set()
        self._ended = asyncio.Queue[asyncio.Task[Any]]()

    async def run(self) -> int:
        """Start the parts one after the other, then wait for the first one to end, which none should."""
        stop_request = self._start("stop", self._stop.wait())
        self._start("credentials", self._access.keep_fresh())
        self._start("loop lag", self.health.measure_loop_lag())
        starting = self._start("start", self._start_in_order())
        while True:
            task = await self._ended.get()
            if stop_request.done():
                logger.info("stopping")
                await self._stop_parts()
                return 0
            if task is not starting or task.cancelled() or task.exception() is not None:
                await self._stop_parts()
                logger.error("stopped, because the part %r has ended: %s", task.get_name(), _reason_for_end(task))
                return 1

    async def _start_in_order(self) -> None:
        await _in_time(self._wait_for_the_crd(), "the API server to serve DDPJobs: install the CRD")
        reconciler = self._reconciler(await self._discover_providers(), await self._decide_on_network_policies())
        self._start("watch of the Lease", self._leadership.follow())
        leads_from_the_start = await self._leadership.try_acquire()
        if leads_from_the_start:
            self._start("Lease", self._leadership.keep())
        await self._fill_the_caches()
        self.health.ready = True
        where = ", ".join(self._settings.namespaces) or "all namespaces"
        logger.info("watching DDPJobs of %s; %d exist", where, len(self._store.jobs))
        if not leads_from_the_start:  # Otherwise everything was read after the Lease was acquired.
            logger.info("standing by: another operator holds the Lease")
            await self._leadership.acquire()
            self._start("Lease", self._leadership.keep())
            await _in_time(self._read_past_the_caches(), "a list of what the former leader has written")
        self._start("progress", self._progress.run())
        self._start("events", self._events.run())
        self._queue.open(self._store.keys())
        for number in range(self._settings.workers):
            self._start(f"worker {number}", reconciler.work())
        logger.info("running DDPJobs of %s", where)

    async def _discover_providers(self) -> Mapping[str | None, Provider]:
        """Decide what schedules gangs in each namespace, and prepare to watch its objects there."""
        setting, scopes = self._settings.scheduling_provider, self._settings.scopes
        # An access review is a POST, which the other client sends only while this process holds the Lease. There is no limit: a
        # restart would find the cluster as it is, and log the same sentence again.
        choices = await discover(self._lease_client, setting, scopes)
        scopes_of: dict[Watched, list[str | None]] = {}
        for scope, choice in choices.items():
            where = f" of {scope}" if scope else ""
            logger.info("scheduling provider%s: %s (setting %s): %s", where, choice.provider.name, setting, choice.why)
            for watched in choice.provider.watched:
                scopes_of.setdefault(watched, []).append(scope)
        for watched, where_watched in scopes_of.items():
            self._watch(watched, where_watched)
        return {scope: choice.provider for scope, choice in choices.items()}

    async def _decide_on_network_policies(self) -> bool:
        """Whether jobs get NetworkPolicies; if so, prepare to watch them."""
        settings = self._settings
        if not settings.makes_network_policies:
            logger.info("jobs get no NetworkPolicies: --network-policies is none")
            return False
        # An access review is a POST, which the other client sends only while this process holds the Lease.
        asked = may_make_network_policies(self._lease_client, settings.scopes)
        makes = await _in_time(asked, "the API server to say whether this operator may create NetworkPolicies")
        if makes:
            self._watch(WATCHED_POLICIES, settings.scopes)
        return makes

    def _watch(self, watched: Watched, scopes: Sequence[str | None]) -> None:
        cache = self._store.watch(watched)
        self._informers += [Informer(self._client, cache, scope) for scope in scopes]

    def _reconciler(self, providers: Mapping[str | None, Provider], makes_network_policies: bool) -> Reconciler:
        provider = next(iter(providers.values()))
        expectations = Expectations(self._memories)
        return Reconciler(
            client=self._client,
            queue=self._queue,
            store=self._store,
            memories=self._memories,
            expectations=expectations,
            rejections=self._rejections,
            actuator=Actuator(self._client, self._store, expectations, self._rejections),
            status_writer=StatusWriter(self._client, self._store, self._events, self._memories),
            lookups=self._lookups,
            progress=self._progress,
            trainer_image=self._settings.trainer_image,
            provider=provider,
            other_providers={scope: other for scope, other in providers.items() if scope and other is not provider},
            makes_network_policies=makes_network_policies,
        )

    async def _fill_the_caches(self) -> None:
        """Read the jobs before their pods: a job whose pods all exist must never be seen with an older list of pods."""
        await _in_time(self._read(self._store.jobs), "the first list of DDPJobs")
        for informer in self._informers:
            self._start(f"watch of {informer.name}", informer.run())
            await informer.first_list(START_SECONDS)
        # A full garbage collection visits all that was just read, and would do so for every few thousand objects more
        # (measured: 25 to 65 % of the CPU time of a burst of events).
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        for kopf in self._kopfs:
            self._start(kopf.name, kopf.keep_running(lambda: _stop_on_signals(self._stop), self._after_end_of_kopf))
        for kopf in self._kopfs:
            await _in_time(kopf.wait_for_watch(), "kopf to discover which resources the API server serves")
        self._start("audit", self._audit.run((self._store.jobs, *self._store.of_jobs)))

    async def _read_past_the_caches(self) -> None:
        """Read everything again: a leader must not act on what it knew before it became one.

        Jobs come first, so that pods are created only of an attempt that was read after the Lease was acquired.
        """
        await self._read(self._store.jobs)
        await asyncio.gather(*(self._read(cache) for cache in self._store.of_jobs))

    async def _wait_for_the_crd(self) -> None:
        """Wait, since kopf would not notice it coming later."""
        while (missing := await self._missing_api()) is not None:
            logger.info("waiting for the API server to serve DDPJobs (is the CRD installed?): %s", missing)
            await asyncio.sleep(1.0)

    async def _missing_api(self) -> str | None:
        """Why the API server does not serve DDPJobs, or does not answer; None if it serves them."""
        try:
            return None if await self._client.serves(DDPJOBS) else f"{names.API_VERSION} has no {names.PLURAL}"
        except NotFoundError:
            return f"{names.API_VERSION} is unknown"
        except ApiError as error:
            return str(error)

    async def _read(self, cache: Cache[Any]) -> None:
        while True:
            try:
                await self._audit.compare(cache)
            except ApiError as error:
                logger.warning("cannot list %s, trying again: %s", cache.resource.plural, error)
                await asyncio.sleep(1.0)
            else:
                return

    async def _after_end_of_kopf(self, error: Exception) -> None:
        """Read the DDPJobs past kopf, which reports no deletion of the time in which it does not watch.

        If the CRD is deleted kopf ends with an error that names a URL only, so look for the cause.
        """
        if missing := await self._missing_api():
            raise LookupError(
                f"the API server no longer serves DDPJobs ({missing}): if the CRD was deleted, install it again"
            ) from error
        with suppress(ApiError):  # the next audit repairs it
            await self._audit.compare(self._store.jobs)

    def _retry_creation(self, namespace: str, name: str) -> None:
        for key in self._rejections.name_is_free(namespace, name):
            self._queue.add(key)

    def _start(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name)
        self._parts.add(task)
        task.add_done_callback(self._ended.put_nowait)
        return task

    async def _stop_parts(self) -> None:
        """Stop everything that writes, then release the Lease so that another operator starts at once; kopf is last."""
        self.health.ready = False
        kopf = {task for task in self._parts if task.get_name() in {watch.name for watch in self._kopfs}}
        writers = self._parts - kopf
        await asyncio.gather(_cancel(writers), self._lookups.stop(), self._progress.stop(), return_exceptions=True)
        await self._leadership.release()
        for task in kopf:
            task.cancel()
        if kopf:
            await asyncio.wait(kopf)  # It bounds the time that it takes.


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel until all have ended: a wait that is over at that very moment may swallow a cancellation (Python 3.11)."""
    deadline = time.monotonic() + STOP_SECONDS
    while tasks and time.monotonic() < deadline:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=0.1)
    for task in tasks:
        logger.error("the part %r does not end", task.get_name())


async def _in_time(work: Coroutine[Any, Any, T], what: str) -> T:
    try:
        return await asyncio.wait_for(work, START_SECONDS)
    except TimeoutError:
        raise TimeoutError(f"timed out after {START_SECONDS:.0f} s of waiting for {what}") from None


def _stop_on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)


def _reason_for_end(task: asyncio.Task[Any]) -> str:
    if task.cancelled():
        return "it was cancelled"
    error = task.exception()
    return f"{type(error).__name__}: {error}" if error else "it returned"
