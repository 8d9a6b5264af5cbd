"""One operator process: the real parts, wired as in `app.py`, with kopf's feed replaced by a model of it."""

import asyncio
import contextvars
from collections.abc import Callable
from contextlib import aclosing
from random import Random
from typing import Any, cast

from ddpjob_operator.kopf_adapter import JobFeed
from ddpjob_operator.kube.cache.audit import Audit
from ddpjob_operator.kube.cache.informer import Informer
from ddpjob_operator.scheduling.interface import Provider
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ApiError, GoneError
from ddpjob_operator.transport.resources import DDPJOBS
from simulation.api_client import FAULTS, ModelClient
from simulation.api_server import JOBS, ApiServer, Change
from simulation.virtual_time import RUNNING_PROCESS
from support.engine import Engine

AUDIT_SECONDS = 300.0
NUM_WORKERS = 4  # of which the one namespace of the simulation gets two


class OperatorProcess:
    """Starts with an empty memory, and forgets everything when it dies."""

    def __init__(
        self,
        name: str,
        server: ApiServer,
        random: Random,
        log_of: Callable[[str], str],
        *,
        progress_interval_seconds: float,
        fault_percent: int,
        provider: Provider,
        died: Callable[["OperatorProcess"], None],
    ) -> None:
        """`died` is called once, when the process has died of itself."""
        self._loop = asyncio.get_running_loop()
        self.name = name
        self.random = random
        self._server = server
        self._log_of = log_of
        self._progress_interval_seconds = progress_interval_seconds
        self._provider = provider
        self._died = died
        self.tasks: list[asyncio.Task[Any]] = []
        self.alive = True
        self.started_at = self._loop.time()
        self.last_effect_at = self.started_at
        self._num_in_flight = 0
        self._late_at = 0.0
        self.num_write_calls = 0
        self.repeated: list[str] = []
        """Requests that were sent again although they had been answered well."""
        self.faults: list[str] = []
        """What happens to the next requests."""
        self.fault_percent = fault_percent
        self.late_deletions = 0
        self.slow_creations = 0
        self.cut_off_until = 0.0
        self.calls_to_death: int | None = None
        self.dies_with_answer_unread = False
        self.client = ModelClient(server, self, log_of)

    # --- The client's faults ----------------------------------------------------------------------------------------

    def next_fault(self, verb: str) -> str | None:
        """What happens to the next request."""
        if self.late_deletions and verb == "delete":
            self.late_deletions -= 1
            return "late"
        if self.slow_creations and verb == "create":
            self.slow_creations -= 1
            return "slow"
        if self._loop.time() < self.cut_off_until:
            return "refused"
        if self.faults:
            return self.faults.pop(0)
        if self.fault_percent and self.random.random() * 100 < self.fault_percent:
            return self.random.choice(FAULTS)
        return None

    def dies_before(self, *, writes: bool) -> bool:
        """Whether the process dies now, with the request not sent."""
        self.num_write_calls += writes
        if self.calls_to_death is None:
            return False
        self.calls_to_death -= 1
        return self.calls_to_death < 0 and not self.dies_with_answer_unread

    def dies_after(self) -> bool:
        """Whether the process dies now, with the request done and the answer not read."""
        return self.calls_to_death is not None and self.calls_to_death < 0

    async def die(self) -> None:
        """End this process; does not come back."""
        self.kill()
        await self._loop.create_future()

    def in_flight(self, change: int) -> None:
        """So many more requests of this process are on their way."""
        self._num_in_flight += change
        self.last_effect_at = self._late_at = self._loop.time()

    def repeats(self, request: str) -> None:
        """It sends once more what was answered well, although that still holds."""
        self.repeated.append(request)

    def sees_well(self) -> bool:
        """Whether its watches have worked for a while, and it can act."""
        now = self._loop.time()
        settled = self.alive and self.started_at < now - 15 and self.cut_off_until < now - 15
        return (
            settled
            and not self.fault_percent
            and len(self.client.streams) == 3 + len(self._provider.watched)
            and not any(stream.frozen_until > now - 15 for stream in self.client.streams)
        )

    @property
    def has_late_requests(self) -> bool:
        """Whether a request that this process has given up on may have been done lately, or may still be."""
        return self._num_in_flight > 0 or self._late_at > self._loop.time() - 120

    # --- Life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, in a context of its own: the clocks know by it who asks."""
        context = contextvars.copy_context()
        context.run(RUNNING_PROCESS.set, self.name)
        self._loop.create_task(self._run(), context=context)

    def kill(self) -> None:
        """SIGKILL: nothing of it runs any more."""
        if not self.alive:
            return
        self.alive = False
        self.last_effect_at = self._loop.time()
        for task in self.tasks:
            task.cancel()
        self._died(self)

    def go_blind_at_next_attempt(self, seconds: float) -> None:
        """Once it has heard that an attempt begins, it hears of pods late, and of jobs later still."""

        def freeze(change: Change) -> None:
            status = change.body.get("status") or {}
            if change.plural != JOBS or any(
                c["type"] == "Created" and c["status"] == "True" for c in status.get("conditions", ())
            ):
                return
            self.client.delivered = None
            for stream in self.client.streams:
                stream.freeze(seconds + 50 if stream.plural == JOBS else seconds)

        self.client.delivered = freeze

    def could_write_since(self, moment: float) -> bool:
        """Whether anything of this process may have reached the server since then."""
        return self.alive or self._num_in_flight > 0 or self.last_effect_at >= moment

    async def _run(self) -> None:
        """The order of `app.py`: jobs first, then their pods, so that no job is seen with an older list of pods."""
        client = cast("Client", self.client)
        engine = Engine(client, NUM_WORKERS, self._progress_interval_seconds, self._provider)
        store = engine.store
        feed = JobFeed(store.jobs)
        audit = Audit(client, (None,), AUDIT_SECONDS)
        while True:
            try:
                await audit.compare(store.jobs)
                break
            except ApiError:
                await asyncio.sleep(1.0)
        start = self._loop.create_task
        for cache in store.of_jobs:
            informer = Informer(client, cache, None)
            start(informer.run())
            await informer.synced.wait()
        start(self._feed(feed))
        start(audit.run((store.jobs, *store.of_jobs)))
        start(engine.progress.run())
        for _ in range(NUM_WORKERS):
            start(engine.reconciler.work())

    async def _feed(self, feed: JobFeed) -> None:
        """The watch of kopf: after a 410 it lists again and says nothing of what has gone."""
        version = ""
        while True:
            try:
                if not version:
                    async for page in self.client.pages(DDPJOBS, None):
                        for body in page.items:
                            feed.take(None, body)
                        version = page.resource_version
                async with aclosing(self.client.watch(DDPJOBS, None, "", version)) as events:
                    async for event in events:
                        feed.take(event.type, event.body)
                        version = event.body["metadata"]["resourceVersion"]
            except GoneError:
                version = ""
            except ApiError:
                await asyncio.sleep(0.2)
