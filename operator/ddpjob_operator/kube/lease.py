"""Leader election: of several operators the one that holds the Lease works.

All of them watch and keep their caches; only the holder writes. No time of the Lease is compared with a local clock: an
elector notes when it saw the Lease change and counts from there on its own monotonic clock, so that clocks may differ. A
holder that cannot renew stops writing well before another may take the Lease. It keeps trying, and continues if no other has
taken it: an unavailable API server is no reason to restart. It cannot stop a write that is in flight at that moment; the rules
of the engine make such a write harmless.

A Lease is acquired under a resourceVersion, so of several that try one succeeds, and the watch is for speed only.
"""

import asyncio
import logging
import time
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from ddpjob_operator.core.model import Body
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ApiError, ConflictError, NotFoundError
from ddpjob_operator.transport.resources import LEASES

logger = logging.getLogger(__name__)

#: The release of the Lease must not delay the end of the process.
RELEASE_SECONDS = 2.0


class LeaseLostError(Exception):
    """Another process has taken the Lease, so this one must not act any more."""


class Leadership(Protocol):
    """The right to write."""

    def held(self) -> bool:
        """Whether this process may write, at this moment."""

    async def follow(self) -> None:
        """Watch for changes until cancelled."""

    async def try_acquire(self) -> bool:
        """Acquire the right if no other process has it, without waiting. Returns whether this process has it now."""

    async def acquire(self) -> None:
        """Wait until this process has it."""

    async def keep(self) -> None:
        """Keep it until cancelled. Raises LeaseLostError when it is lost."""

    async def release(self) -> None:
        """Release it for a standby. Needs `keep` to have ended; never raises ApiError."""


class NoLeaderElection:
    """The right to write of an operator that is the only one and needs no Lease."""

    def held(self) -> bool:
        """Always."""
        return True

    async def follow(self) -> None:
        """There is nothing to watch; runs until cancelled."""
        await asyncio.Event().wait()

    async def try_acquire(self) -> bool:
        """Always."""
        return True

    async def acquire(self) -> None:
        """Always."""

    async def keep(self) -> None:
        """It cannot be lost; runs until cancelled."""
        await asyncio.Event().wait()

    async def release(self) -> None:
        """No other process waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """A version of the Lease."""

    holder: str
    """Empty if it is free."""
    renewed: str
    """The holder's time of the last renewal; only ever compared with another one."""
    seconds: float
    transitions: int
    version: int


class Elector:
    """The right to write of the process that holds a Lease."""

    def __init__(self, client: Client, namespace: str, name: str, identity: str, lease_seconds: int) -> None:
        """Nothing held yet.

        `identity` must differ between processes that run at the same time; a process that restarts with the same identity
        keeps its own Lease. Other requests must not be able to delay those of `client`.
        """
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._lease_seconds = lease_seconds
        self._renew_seconds = lease_seconds / 3
        self._request_seconds = lease_seconds / 4
        self._retry_seconds = lease_seconds / 18
        #: Time for two tries to renew on an API server that hardly answers.
        self._deadline_seconds = lease_seconds * 5 / 6
        self._seen: _Record | None = None  # None: it does not exist, or has not been read.
        self._seen_at = 0.0
        self._newest_version = 0
        self._changed = asyncio.Event()
        self._valid_until = 0.0

    def held(self) -> bool:
        """Whether this process may write, at this moment."""
        return time.monotonic() < self._valid_until

    async def follow(self) -> None:
        """Watch the Lease until cancelled, so that a release, a loss or a deletion is known at once."""
        while True:
            pause_seconds = self._retry_seconds
            try:
                selector = f"metadata.name={self._name}"
                async with aclosing(self._client.watch(LEASES, self._namespace, "", "", fields=selector)) as events:
                    async for event in events:
                        if event.type == "DELETED":
                            self._note_absence()
                        elif event.type != "BOOKMARK":
                            self._note(event.body)
            except ApiError as error:
                logger.warning("the watch of %s failed and is retried: %s", self, error)
                pause_seconds = self._renew_seconds
            await asyncio.sleep(pause_seconds)

    async def try_acquire(self) -> bool:
        """Acquire the Lease if it is free, has expired, or belonged to this process before it was restarted."""
        try:
            if self._seen is None:
                await self._look()
            if not self._may_be_taken():
                return False
            await self._claim()
        except (ConflictError, NotFoundError):
            self._seen = None  # Another process was faster, or the Lease was deleted: read it again.
            return False
        except (ApiError, TimeoutError) as error:
            logger.warning("%s cannot be acquired: %s", self, _text(error))
            return False
        logger.info("%s is held by this process, %s", self, self._identity)
        return self.held()

    async def acquire(self) -> None:
        """Wait until this process holds the Lease."""
        while not await self.try_acquire():
            await self._wait(max(self._seconds_to_expiry(), self._retry_seconds))

    async def keep(self) -> None:
        """Renew the Lease until cancelled. Raises LeaseLostError when another holds the Lease, or has held it."""
        renew_at = self._valid_until - self._deadline_seconds + self._renew_seconds
        while True:
            await self._wait(renew_at - time.monotonic())
            self._check()
            if time.monotonic() < renew_at:
                continue
            try:
                if self._seen is None:
                    await self._look()
                    self._check()
                await self._claim()
                renew_at = time.monotonic() + self._renew_seconds
            except (ConflictError, NotFoundError):
                self._seen = None  # It has changed: read it again, after a pause.
                renew_at = time.monotonic() + self._retry_seconds
            except (ApiError, TimeoutError) as error:
                renew_at = time.monotonic() + self._retry_seconds
                effect = (
                    "is not renewed yet"
                    if self.held()
                    else "could not be renewed in time, so this process writes nothing"
                )
                logger.warning("%s %s: %s", self, effect, _text(error))

    async def release(self) -> None:
        """Clear the holder of the Lease, if it is this process, so that a standby acquires it without waiting."""
        if not self.held():
            return
        self._valid_until = 0.0
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._give_up()
        except (ApiError, TimeoutError) as error:
            logger.warning("%s could not be released and will expire: %s", self, _text(error))
        else:
            logger.info("%s is released", self)

    async def _give_up(self) -> None:
        while self._seen is not None and self._seen.holder == self._identity:
            patch = {"metadata": {"resourceVersion": str(self._seen.version)}, "spec": {"holderIdentity": None}}
            try:
                self._note(await self._client.merge_patch(LEASES, self._namespace, self._name, patch))
            except ConflictError:  # A renewal that was cancelled in flight has arrived.
                await self._look()

    def _check(self) -> None:
        if self._seen is not None and self._seen.holder != self._identity:
            raise LeaseLostError(f"{self} is held by {self._seen.holder or 'no process'}, not by {self._identity}")

    def _may_be_taken(self) -> bool:
        seen = self._seen
        return seen is None or seen.holder in ("", self._identity) or self._seconds_to_expiry() <= 0

    def _seconds_to_expiry(self) -> float:
        """Seconds until the Lease expires, counted from when this process saw the last renewal, so never too few."""
        if self._seen is None or not self._seen.holder:
            return 0.0
        return self._seen_at + self._seen.seconds - time.monotonic()

    async def _look(self) -> None:
        """Read the Lease from the API server instead of waiting for the watch."""
        newest_version = self._newest_version
        try:
            async with asyncio.timeout(self._request_seconds):
                body = await self._client.get(LEASES, self._namespace, self._name)
            # The answer is the latest state. If it is older than what was known before, etcd was restored from a backup.
            if int(body["metadata"]["resourceVersion"]) < newest_version:
                self._newest_version = 0
            self._note(body)
        except NotFoundError:
            self._note_absence()

    async def _claim(self) -> None:
        """Write that this process holds the Lease from now on. ConflictError: it has changed since it was seen."""
        started_at = time.monotonic()
        body = self._body(self._seen)
        async with asyncio.timeout(self._request_seconds):
            if self._seen is None:
                answer = await self._client.create(LEASES, self._namespace, body)
            else:
                answer = await self._client.merge_patch(LEASES, self._namespace, self._name, body)
        self._note(answer)
        if (
            self._seen is not None and self._seen.holder == self._identity
        ):  # Otherwise the watch has shown a newer holder.
            self._valid_until = started_at + self._deadline_seconds

    def _body(self, former: _Record | None) -> Body:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec: dict[str, Any] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._lease_seconds,
            "renewTime": now,
        }
        if former is None or former.holder != self._identity:
            spec |= {"acquireTime": now, "leaseTransitions": former.transitions + 1 if former else 0}
        if former is None:
            return {"metadata": {"name": self._name, "namespace": self._namespace}, "spec": spec}
        return {"metadata": {"resourceVersion": str(former.version)}, "spec": spec}

    def _note(self, body: Body) -> None:
        """Remember a version of the Lease, unless a newer one is known."""
        spec = body.get("spec") or {}
        record = _Record(
            holder=spec.get("holderIdentity") or "",
            renewed=spec.get("renewTime") or "",
            seconds=float(spec.get("leaseDurationSeconds") or self._lease_seconds),
            transitions=spec.get("leaseTransitions") or 0,
            version=int(body["metadata"]["resourceVersion"]),
        )
        if record.version < self._newest_version:  # The watch may be late.
            return
        self._newest_version = record.version
        former = self._seen
        if former is None or (former.holder, former.renewed) != (record.holder, record.renewed):
            self._seen_at = time.monotonic()
        self._seen = record
        if record.holder != self._identity:
            self._valid_until = 0.0
        self._changed.set()

    def _note_absence(self) -> None:
        self._seen = None
        self._changed.set()

    async def _wait(self, seconds: float) -> None:
        """Wait until the Lease has changed since the last wait, for at most this many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._changed.wait()
        self._changed.clear()

    def __str__(self) -> str:
        return f"Lease {self._namespace}/{self._name}"


def _text(error: ApiError | TimeoutError) -> str:
    return str(error) or "the API server did not answer in time"
