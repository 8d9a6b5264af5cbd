"""Records what happens to a job as Kubernetes Events, which `kubectl describe ddpjob` lists.

Events are for people, and no decision depends on them: recording one neither delays nor fails a reconcile, and an Event that
the API server does not accept at once is dropped. They are core/v1 Events: a series of events.k8s.io/v1 must be written at its
end, while `kubectl describe` shows the count and both times of core/v1 as "(x3 over 5m)".

A repetition raises the count of its Event. Each job has a budget, so that one that fails again and again does not fill the
cluster's store. Namespaces share the writers and the places to wait.
"""

import asyncio
import logging
import time
import uuid
from collections import deque

from ddpjob_operator.api import names
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.events import Notice, events_between
from ddpjob_operator.core.model import Body, Job
from ddpjob_operator.core.times import rfc3339
from ddpjob_operator.kube.engine.event_account import EventSeries
from ddpjob_operator.kube.engine.job_memory import JobMemories
from ddpjob_operator.kube.engine.workqueue import WorkQueue
from ddpjob_operator.kube.fair_share import Shares
from ddpjob_operator.kube.keys import Key, key_of
from ddpjob_operator.kube.metrics import EVENT_WRITES
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import (
    ApiError,
    ConflictError,
    NotFoundError,
    ThrottledError,
    UnavailableError,
)
from ddpjob_operator.transport.resources import EVENTS

logger = logging.getLogger(__name__)

#: Different Events of a job whose counts are remembered.
MAX_SERIES = 20
#: Events of all jobs that wait to be written; of one namespace a half at most.
MAX_WAITING = 2000
NUM_WRITERS = 4
WRITE_SECONDS = 5.0
#: Pause of a writer after the API server has failed or not answered: it may be overloaded.
PAUSE_SECONDS = 1.0
#: The limit of Kubernetes' own recorder.
MAX_MESSAGE_LENGTH = 1024


class EventRecorder:
    """Writes Events in the background, those of one job one after the other."""

    def __init__(self, client: Client, identity: str, memories: JobMemories) -> None:
        """`identity` is the operator's, shown as the reporting instance."""
        self._client = client
        self._identity = identity
        self._memories = memories
        self._waiting: dict[Key, deque[EventSeries]] = {}
        self._places = Shares(MAX_WAITING)
        self._queue = WorkQueue(NUM_WRITERS, "events")

    def record(self, job: Job, before: DDPJobStatus, after: DDPJobStatus) -> None:
        """Record what happened between two statuses of a job. Never waits, never raises."""
        try:
            notices = events_between(before, after)
        except Exception:  # no Event may fail a reconcile
            logger.exception(
                "%s/%s: the Events of a change cannot be made; this is a defect of the operator",
                job.namespace,
                job.name,
            )
            return
        is_end = after.finished and not before.finished
        for notice in notices:
            self._record(job, notice, free=is_end)

    async def run(self) -> None:
        """Write what is recorded, until cancelled."""
        async with asyncio.TaskGroup() as writers:
            for number in range(NUM_WRITERS):
                writers.create_task(self._work(), name=f"writer of Events {number}")

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            try:
                pause_seconds = await self._write_or_drop(self._next(key))
                await asyncio.sleep(pause_seconds)
            finally:
                self._queue.done(key)

    def _next(self, key: Key) -> EventSeries:
        """The Event of the job that has waited longest; it gives up its place."""
        waiting = self._waiting[key]
        series = waiting.popleft()
        self._places.release(key[0])
        if waiting:
            self._queue.add(key)
        else:
            del self._waiting[key]
        return series

    async def _write_or_drop(self, series: EventSeries) -> float:
        """Write an Event, if the API server accepts it. Returns the seconds to wait before the next one."""
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await self._write(series)
        except (ApiError, TimeoutError) as error:
            EVENT_WRITES.labels("failed").inc()
            logger.info("dropped an Event: %s", error or "the API server did not answer in time")
            if isinstance(error, ThrottledError):
                return error.retry_after_seconds
            return PAUSE_SECONDS if isinstance(error, UnavailableError | TimeoutError) else 0.0
        EVENT_WRITES.labels("written").inc()
        return 0.0

    def _record(self, job: Job, notice: Notice, *, free: bool) -> None:
        now = time.time()
        account = self._memories.of_job(job).events
        if not account.use_token(time.monotonic()) and not free:
            EVENT_WRITES.labels("over budget").inc()
            return
        series = account.series.get(notice)
        if series is None:
            series = account.series[notice] = EventSeries(namespace=job.namespace, body=self._body(job, notice, now))
            if len(account.series) > MAX_SERIES:
                account.series.popitem(last=False)
        account.series.move_to_end(notice)
        series.count += 1
        series.last_at = now
        self._enqueue(key_of(job), series)

    def _enqueue(self, key: Key, series: EventSeries) -> None:
        waiting = self._waiting.get(key, ())
        if any(other is series for other in waiting):
            return  # The write that it waits for covers this repetition, too.
        if not self._places.may_take(key[0]):
            EVENT_WRITES.labels("dropped").inc()
            return
        self._places.take(key[0])
        self._waiting.setdefault(key, deque()).append(series)
        self._queue.add(key)

    async def _write(self, series: EventSeries) -> None:
        count = series.count
        if series.written_count:
            try:
                await self._raise_count(series)
            except NotFoundError:  # The API server forgets Events after an hour.
                await self._create(series)
        else:
            try:
                await self._create(series)
            except ConflictError:  # An earlier write came through although its answer did not.
                await self._raise_count(series)
        series.written_count = count

    async def _create(self, series: EventSeries) -> None:
        await self._client.create(EVENTS, series.namespace, {**series.body, **series.changing()})

    async def _raise_count(self, series: EventSeries) -> None:
        await self._client.merge_patch(EVENTS, series.namespace, series.body["metadata"]["name"], series.changing())

    def _body(self, job: Job, notice: Notice, now: float) -> Body:
        return {
            "metadata": {"name": f"{job.name}.{uuid.uuid4().hex[:16]}", "namespace": job.namespace},
            "involvedObject": {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "namespace": job.namespace,
                "name": job.name,
                "uid": job.uid,
            },
            "type": notice.type,
            "reason": notice.reason,
            "message": notice.message[:MAX_MESSAGE_LENGTH],
            "firstTimestamp": rfc3339(now),
            "source": {"component": names.MANAGER},
            "reportingComponent": names.MANAGER,
            "reportingInstance": self._identity,
        }
