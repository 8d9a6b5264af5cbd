"""The operator's client, as one process has it: requests travel, fail, or lose their answers; watches lag and break.

The same interface as `ddpjob_operator.transport.client.Client`. A process that dies in a request may leave it on its way.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from random import Random
from typing import Any, Protocol, TypeVar

from ddpjob_operator.transport.client import Event, Page
from ddpjob_operator.transport.errors import ApiError, ConflictError, ThrottledError, UnavailableError
from ddpjob_operator.transport.resources import Resource
from simulation.api_server import ApiServer, Body, Change, carries, owner_uid

T = TypeVar("T")

#: What can happen to a request. `refused`: it does not arrive. `lost`: it is done and the answer is not heard. `late`: it
#: is done after the client has given up. `slow`: it takes seconds.
FAULTS = ("refused", "lost", "late", "slow", "error500", "throttled", "conflict")
#: How long the operator's client waits for an answer.
REQUEST_SECONDS = 30.0
#: Seconds that a request is on its way, and again its answer.
LATENCIES_SECONDS = (0.001, 0.001, 0.003, 0.01, 0.05)
#: Seconds from a change to its watch event.
LAGS_SECONDS = (0.001, 0.002, 0.005, 0.02, 0.2)


class Link(Protocol):
    """Decides which requests of a client's process fail."""

    name: str
    random: Random

    def next_fault(self, verb: str) -> str | None:
        """What happens to the next request."""

    def dies_before(self, *, writes: bool) -> bool:
        """Whether the process dies now, with the request not sent."""

    def dies_after(self) -> bool:
        """Whether the process dies now, with the request done and the answer not read."""

    async def die(self) -> None:
        """End this process; does not come back."""

    def in_flight(self, change: int) -> None:
        """So many more requests of this process are on their way."""

    def repeats(self, request: str) -> None:
        """It sends once more what was answered well, although that still holds."""


class Stream:
    """One open watch: the events of the server, each with the time at which it arrives."""

    def __init__(self, server: ApiServer, plural: str, labels: str, version: int, link: Link) -> None:
        """Raises GoneError for a version that the server has forgotten."""
        self._server = server
        self.plural = plural
        self._labels = labels
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._arriving: deque[tuple[float, Change]] = deque()
        self._last_arrival = 0.0
        self._woken: asyncio.Future[None] | None = None
        self._broken: ApiError | None = None
        self.frozen_until = 0.0
        self._drops_next_delete = False
        for change in server.changes_after(plural, version):
            self._take(change)
        server.listeners.append(self._take)

    def close(self) -> None:
        """Receive no more events."""
        self._server.listeners.remove(self._take)

    def freeze(self, seconds: float) -> None:
        """Nothing arrives for so long; then all of it."""
        self.frozen_until = self._loop.time() + seconds

    def cut(self) -> None:
        """The connection ends; what has not arrived is read again by whoever watches next."""
        self._broken = UnavailableError(f"watch {self.plural}", "connection reset by peer")
        self._wake()

    def lose_next_delete(self) -> None:
        """The event of the next deletion is lost."""
        self._drops_next_delete = True

    def repeat(self, change: Change) -> None:
        """Send the event of an old change again."""
        self._arriving.append((max(self._loop.time(), self._last_arrival), change))
        self._wake()

    async def next(self) -> Change:
        """The next change, at its time. Raises ApiError when the stream is broken."""
        while True:
            if self._broken is not None:
                raise self._broken
            now = self._loop.time()
            due = max(self._arriving[0][0], self.frozen_until) if self._arriving else None
            if due is not None and due <= now:
                return self._arriving.popleft()[1]
            self._woken = self._loop.create_future()
            timer = self._loop.call_at(due, self._wake) if due is not None else None
            try:
                await self._woken
            finally:
                self._woken = None
                if timer is not None:
                    timer.cancel()

    def _take(self, change: Change) -> None:
        if change.plural != self.plural or (self._labels and not carries(change.body, self._labels)):
            return
        if self._drops_next_delete and change.type == "DELETED":
            self._drops_next_delete = False
            return
        self._last_arrival = max(self._last_arrival, self._loop.time() + self._link.random.choice(LAGS_SECONDS))
        self._arriving.append((self._last_arrival, change))
        if len(self._arriving) == 1:
            self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


class ModelClient:
    """Requests of one operator process to the model API server."""

    def __init__(self, server: ApiServer, link: Link, log_of: Callable[[str], str]) -> None:
        """`log_of` gives what the main container of a pod has printed; ApiError where it cannot be read."""
        self._server = server
        self._link = link
        self._log_of = log_of
        self._answered: dict[tuple[str, str, int | None], str] = {}
        """uid of each object by the request that created or marked it."""
        self.delivered: Callable[[Change], None] | None = None
        """Called with each change that has arrived."""
        self.streams: list[Stream] = []

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Body:  # noqa: ARG002 there is one
        """One object."""
        return await self._request("get", lambda: self._server.get(resource.plural, name))

    async def create(self, resource: Resource, namespace: str | None, body: Body) -> Body:  # noqa: ARG002
        """Create an object."""
        by, name = self._link.name, body["metadata"]["name"]
        there = self._server.find(resource.plural, name)
        is_ours = there is not None and owner_uid(there) == owner_uid(body)
        if there is not None and is_ours and self._answered.get(("create", name, None)) == there["metadata"]["uid"]:
            self._link.repeats(f"create {resource.plural} {name}")
        answer = await self._request("create", lambda: self._server.create(resource.plural, body, by), writes=True)
        self._answered["create", name, None] = answer["metadata"]["uid"]
        return answer

    async def delete(
        self,
        resource: Resource,
        namespace: str,  # noqa: ARG002
        name: str,
        *,
        uid: str,
        resource_version: str = "",
        grace_seconds: int | None = None,
        propagation: str | None = None,  # noqa: ARG002 owners' children go in any case
    ) -> None:
        """Delete this very object."""

        def effect() -> None:
            self._server.expect_version(resource.plural, name, resource_version)
            self._server.delete(resource.plural, name, uid=uid, grace_seconds=grace_seconds, by=self._link.name)

        if self._answered.get(("delete", uid, grace_seconds)) and self._server.by_uid(resource.plural, uid):
            self._link.repeats(f"delete {resource.plural} {name}")
        await self._request("delete", effect, writes=True)
        self._answered["delete", uid, grace_seconds] = uid

    async def delete_collection(self, resource: Resource, namespace: str, labels: str) -> None:  # noqa: ARG002
        """Delete everything that carries these labels, each with its own grace."""

        def effect() -> None:
            for body in self._server.all(resource.plural, labels):
                name, uid = body["metadata"]["name"], body["metadata"]["uid"]
                self._server.delete(resource.plural, name, uid=uid, grace_seconds=None, by=self._link.name)

        await self._request("delete", effect, writes=True)

    async def merge_patch(
        self,
        resource: Resource,
        namespace: str,  # noqa: ARG002
        name: str,
        patch: Body,
        *,
        subresource: str | None = None,
    ) -> Body:
        """Change the fields that `patch` names."""
        plural, by = resource.plural, self._link.name
        return await self._request(
            "patch", lambda: self._server.merge_patch(plural, name, patch, subresource, by), writes=True
        )

    async def pod_log(self, namespace: str, pod: str, **_: Any) -> str:  # noqa: ARG002
        """What a pod has printed."""
        return await self._request("log", lambda: self._log_of(pod))

    async def pages(
        self,
        resource: Resource,
        namespace: str | None,  # noqa: ARG002
        labels: str = "",
        *,
        fields: str = "",  # noqa: ARG002 used for Events only, and there are none
    ) -> AsyncIterator[Page]:
        """List."""

        def effect() -> Page:
            items = self._server.all(resource.plural, labels)
            return Page(items=items, resource_version=str(self._server.version))

        yield await self._request("list", effect)

    everything = pages

    async def watch(
        self,
        resource: Resource,
        namespace: str | None,  # noqa: ARG002
        labels: str,
        resource_version: str,
        *,
        fields: str = "",  # noqa: ARG002
    ) -> AsyncGenerator[Event, None]:
        """What changes after `resource_version`."""
        stream = await self._request(
            "watch", lambda: Stream(self._server, resource.plural, labels, int(resource_version), self._link)
        )
        self.streams.append(stream)
        try:
            while True:
                change = await stream.next()
                if self.delivered is not None:
                    self.delivered(change)
                yield Event(type=change.type, body=change.body)
        finally:
            stream.close()
            self.streams.remove(stream)

    async def _request(self, verb: str, effect: Callable[[], T], *, writes: bool = False) -> T:
        link = self._link
        if link.dies_before(writes=writes):
            await link.die()
        fault = link.next_fault(verb)
        if fault is not None and (writes or fault not in ("conflict", "late")):
            await self._fail(verb, fault, effect, writes=writes)
        await self._travel(link.random.choice(LATENCIES_SECONDS), effect, writes=writes)
        try:
            answer = effect()
        except ApiError:
            await asyncio.sleep(link.random.choice(LATENCIES_SECONDS))
            raise
        if link.dies_after():
            await link.die()
        await asyncio.sleep(link.random.choice(LATENCIES_SECONDS))
        return answer

    async def _travel(self, seconds: float, effect: Callable[[], Any], *, writes: bool) -> None:
        """To the server; what a dying process has sent may still arrive."""
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            if writes and self._link.random.random() < 0.5:
                self._arrive_later(self._link.random.choice((0.01, 0.5, 5.0)), effect)
            raise

    def _arrive_later(self, seconds: float, effect: Callable[[], Any]) -> None:
        self._link.in_flight(1)

        def arrive() -> None:
            self._link.in_flight(-1)
            try:
                effect()
            except ApiError:
                return  # nobody hears it

        asyncio.get_running_loop().call_later(seconds, arrive)

    async def _fail(self, verb: str, fault: str, effect: Callable[[], Any], *, writes: bool) -> None:
        """Do to a request what this fault is; returns only where the request goes on after all."""
        link = self._link
        patience = link.random.choice((0.05, 1.0, REQUEST_SECONDS))
        match fault:
            case "slow":
                await self._travel(link.random.choice((1.0, 5.0, 20.0)), effect, writes=writes)
                return
            case "throttled":
                await asyncio.sleep(0.01)
                raise ThrottledError(verb, "too many requests", status=429, retry_after_seconds=1.0)
            case "conflict":
                await asyncio.sleep(0.01)
                raise ConflictError(verb, "the object has been modified", status=409)
            case "error500":
                await asyncio.sleep(0.01)
                raise UnavailableError(verb, "etcdserver: leader changed", status=500)
            case "lost":
                await self._travel(0.01, effect, writes=writes)
                effect()
            case "late":
                self._arrive_later(patience + link.random.choice((0.01, 2.0, 20.0)), effect)
            case _:
                assert fault == "refused", fault
        await asyncio.sleep(patience)
        raise UnavailableError(verb, "no answer in time")


def changes_until(server: ApiServer, plural: str, moment: int) -> list[Change]:
    """The changes up to a version that are still remembered."""
    end = bisect_right(server.history, moment, key=lambda change: change.version)
    return [change for change in server.history[:end] if change.plural == plural]
