"""Records what happens to a job as Kubernetes Events, which `kubectl describe ddpjob` lists.

Events are for people, and no decision depends on them: recording one neither delays nor fails a reconcile, and an Event that
the API server does not accept at once is dropped. They are core/v1 Events: a series of events.k8s.io/v1 must be written at its
end, while `kubectl describe` shows the count and both times of core/v1 as "(x3 over 5m)".

A repetition raises the count of its Event. Each job has a budget, so that one that fails again and again does not fill the
cluster's store.
"""

import asyncio
import logging
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field

from ddpjob_operator.api import names
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.events import Notice, events_between
from ddpjob_operator.core.model import Body, Job
from ddpjob_operator.core.times import rfc3339
from ddpjob_operator.kube.keys import Key, key_of
from ddpjob_operator.kube.metrics import EVENT_WRITES
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ApiError, ConflictError, NotFoundError, ThrottledError
from ddpjob_operator.transport.resources import EVENTS

logger = logging.getLogger(__name__)

#: Writes of Events that a job may cause at once, and the time after which one more is allowed. The Event of a
#: job's end is free.
BUDGET = 10
SECONDS_FOR_ONE_MORE = 120.0
#: Different Events of a job whose counts are remembered.
MAX_SERIES = 20
MAX_WAITING = 1000
WRITE_SECONDS = 5.0
#: Pause after a failed write: the API server may be overloaded.
PAUSE_SECONDS = 1.0
#: The limit of Kubernetes' own recorder.
MAX_MESSAGE_LENGTH = 1024


@dataclass(slots=True, kw_only=True)
class _Series:
    """One Event, and how often it has happened."""

    namespace: str
    body: Body
    """The Event as it is created, but for the two fields that change."""
    count: int = 0
    last_at: float = 0.0
    written_count: int = 0

    def changing(self) -> dict[str, object]:
        """The fields that change when it happens again."""
        return {"count": self.count, "lastTimestamp": rfc3339(self.last_at)}


@dataclass(slots=True, kw_only=True)
class _Account:
    """A job's Events and its budget."""

    uid: str
    tokens: float
    counted_at: float
    series: OrderedDict[Notice, _Series] = field(default_factory=OrderedDict)

    def use_token(self, now: float) -> bool:
        """Use one token, if there is one."""
        self.tokens = min(self.tokens + (now - self.counted_at) / SECONDS_FOR_ONE_MORE, float(BUDGET))
        self.counted_at = now
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


class EventRecorder:
    """Writes Events in the background, one after the other."""

    def __init__(self, client: Client, identity: str) -> None:
        """`identity` is the operator's, shown as the reporting instance."""
        self._client = client
        self._identity = identity
        self._accounts: dict[Key, _Account] = {}
        self._waiting = asyncio.Queue[_Series](MAX_WAITING)

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

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._accounts.pop(key, None)

    async def run(self) -> None:
        """Write what is recorded, without end."""
        while True:
            series = await self._waiting.get()
            if series.written_count == series.count:
                continue  # An earlier write has covered this one, too.
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await self._write(series)
            except (ApiError, TimeoutError) as error:
                EVENT_WRITES.labels("failed").inc()
                logger.info("dropped an Event: %s", error or "the API server did not answer in time")
                await asyncio.sleep(error.retry_after_seconds if isinstance(error, ThrottledError) else PAUSE_SECONDS)
            else:
                EVENT_WRITES.labels("written").inc()

    def _record(self, job: Job, notice: Notice, *, free: bool) -> None:
        now = time.time()
        account = self._account_of(job)
        if not account.use_token(time.monotonic()) and not free:
            EVENT_WRITES.labels("over budget").inc()
            return
        series = account.series.get(notice)
        if series is None:
            series = account.series[notice] = _Series(namespace=job.namespace, body=self._body(job, notice, now))
            if len(account.series) > MAX_SERIES:
                account.series.popitem(last=False)
        account.series.move_to_end(notice)
        series.count += 1
        series.last_at = now
        try:
            self._waiting.put_nowait(series)
        except asyncio.QueueFull:
            EVENT_WRITES.labels("dropped").inc()

    def _account_of(self, job: Job) -> _Account:
        key = key_of(job)
        account = self._accounts.get(key)
        if account is None or account.uid != job.uid:
            account = _Account(uid=job.uid, tokens=float(BUDGET), counted_at=time.monotonic())
            self._accounts[key] = account
        return account

    async def _write(self, series: _Series) -> None:
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

    async def _create(self, series: _Series) -> None:
        await self._client.create(EVENTS, series.namespace, {**series.body, **series.changing()})

    async def _raise_count(self, series: _Series) -> None:
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
