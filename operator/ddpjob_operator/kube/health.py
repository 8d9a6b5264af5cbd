"""The operator's own /livez, /readyz and /metrics.

Alive means that a restart would not help: the event loop runs and no watch hangs. An API server that does not answer is no
reason to restart, so a watch that keeps trying is alive. Ready means that the caches are filled, on the leader and on
standbys.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import REGISTRY, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ddpjob_operator.kube.cache.informer import Informer
from ddpjob_operator.kube.cache.store import Store
from ddpjob_operator.kube.job_gauges import job_gauges
from ddpjob_operator.kube.pages import Page, served

#: Longer than a watch may be silent and an attempt may take.
STUCK_SECONDS = 300.0
#: Longer than two audits: after the deletion of a job was missed, no event is due once an audit has dropped the job.
FEED_SILENT_SECONDS = 600.0
TICK_SECONDS = 0.5
#: Metrics are rendered at most this often, however many ask for them.
RENDERING_SECONDS = 1.0
#: Connections that wait to be accepted.
BACKLOG = 16


class Health:
    """Probes and metrics."""

    def __init__(
        self,
        store: Store,
        informers: Sequence[Informer],
        feed_silent_seconds: Callable[[], float],
        leads: Callable[[], bool],
        max_jobs: int = 0,
    ) -> None:
        """`feed_silent_seconds` is for how long known changes of DDPJobs have been due; `leads`: whether this process works.

        `max_jobs` is the number of jobs that have gauges of their own.
        """
        self._max_jobs = max_jobs
        self._leads = leads
        self._store = store
        self._informers = informers
        self._feed_silent_seconds = feed_silent_seconds
        self._registry = CollectorRegistry()
        self._registry.register(_State(self))
        self._rendering = asyncio.Lock()
        self._rendered_at = -RENDERING_SECONDS
        self._rendered = Page(503, b"")
        self.ready = False
        self.loop_lag_seconds = 0.0

    @asynccontextmanager
    async def served(self, port: int, probe_socket: str = "") -> AsyncIterator[None]:
        """Serve on all addresses, and on a socket of that path for the kubelet's probes, until the block ends.

        Raises OSError if the port is taken.
        """
        pages = {"/livez": self._livez, "/readyz": self._readyz, "/metrics": self._metrics}
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(served(_listener(port), pages))
            if probe_socket:
                await stack.enter_async_context(served(_listener_at(probe_socket), pages))
            yield

    async def measure_loop_lag(self) -> None:
        """Measure how late the event loop is, until cancelled."""
        while True:
            started_at = time.monotonic()
            await asyncio.sleep(TICK_SECONDS)
            self.loop_lag_seconds = time.monotonic() - started_at - TICK_SECONDS

    def faults(self) -> list[str]:
        """The faults that only a restart of the process can repair."""
        found = [
            f"the watch of {informer.name} has been inactive for {informer.stuck_seconds:.0f} s"
            for informer in self._informers
            if informer.stuck_seconds > STUCK_SECONDS
        ]
        silent_seconds = self._feed_silent_seconds()
        hears_others = all(
            informer.stale_seconds < STUCK_SECONDS / 2 for informer in self._informers if not informer.is_refused
        )
        if silent_seconds > FEED_SILENT_SECONDS and hears_others:  # otherwise the API server is silent
            found.append(f"kopf has not delivered known changes of DDPJobs for {silent_seconds:.0f} s")
        return found

    def state(self) -> Iterator[Metric]:
        """The gauges at this moment."""
        yield GaugeMetricFamily(
            "ddpjob_leader", "1 if this operator is the leader, 0 if it is a standby.", value=int(self._leads())
        )
        known_jobs = [known.job for known in self._store.jobs.records()]
        yield from job_gauges(known_jobs, self._max_jobs, time.time())
        yield GaugeMetricFamily("ddpjob_pods", "Pods of DDPJobs in the cache.", value=len(self._store.pods))
        yield GaugeMetricFamily("ddpjob_loop_lag_seconds", "How late the event loop is.", value=self.loop_lag_seconds)
        ages = GaugeMetricFamily(
            "ddpjob_watch_age_seconds", "Time since a watch last received anything.", labels=["resource"]
        )
        oldest: dict[str, float] = {}
        for informer in self._informers:
            oldest[informer.name] = max(informer.stale_seconds, oldest.get(informer.name, 0.0))
        for name, age in oldest.items():
            ages.add_metric([name], age)
        yield ages

    async def _livez(self) -> Page:
        faults = self.faults()
        return Page(500 if faults else 200, "".join(f"{line}\n" for line in faults or ["ok"]).encode())

    async def _readyz(self) -> Page:
        waiting = [
            informer.name for informer in self._informers if not (informer.synced.is_set() or informer.is_refused)
        ]
        if waiting:
            return Page(503, f"waiting for the first list of {', '.join(waiting)}\n".encode())
        return Page(200, b"ok\n") if self.ready else Page(503, b"starting\n")

    async def _metrics(self) -> Page:
        """The metrics, not older than the request: one that comes too soon after another waits for the next rendering."""
        asked_at = time.monotonic()
        async with self._rendering:
            if self._rendered_at < asked_at:
                await asyncio.sleep(self._rendered_at + RENDERING_SECONDS - time.monotonic())
                self._rendered_at = time.monotonic()
                self._rendered = Page(200, generate_latest(REGISTRY) + generate_latest(self._registry))
        return self._rendered


def _listener(port: int) -> socket.socket:
    """A socket for that port of all addresses, of both versions of IP where this machine has both."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    return socket.create_server(("", port), backlog=BACKLOG)


def _listener_at(path: str) -> socket.socket:
    """A socket of the file system; one of a container that was killed is replaced."""
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(BACKLOG)
    return listener


class _State(Collector):
    def __init__(self, health: Health) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        return self._health.state()

    def describe(self) -> Iterator[Metric]:
        return iter(())
