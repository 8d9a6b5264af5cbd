"""A cache of one kind of objects, as slim records. The newest version wins, wherever it comes from.

Watches, lists and the answers to our own writes all end here. They may arrive late and out of order, so each is compared
by resourceVersion, which Kubernetes guarantees to be comparable as a number for one kind of objects
(https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions). A list also shows what no longer exists: an
informer that only follows events keeps what was deleted while it was not looking.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from ddpjob_operator.core.model import Body
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.resources import Resource

logger = logging.getLogger(__name__)

T = TypeVar("T")
Parse = Callable[[Body, T | None], T]
"""The record of a body, given the record of its former version; ValueError for an object that is not ours."""
Changed = Callable[[str, T | None, T | None], None]
"""Called with the namespace, the old and the new record; None is an absent record."""


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    version: int
    uid: str
    record: T


class Cache(Generic[T]):
    """Records by namespace and name."""

    def __init__(self, resource: Resource, labels: str, parse: Parse[T], changed: Changed[T]) -> None:
        """`labels` selects the objects that are listed."""
        self.resource = resource
        self.labels = labels
        self._parse = parse
        self._changed = changed
        self._entries: dict[tuple[str, str], _Entry[T]] = {}
        self._tombstones: list[set[str]] = []
        #: How often the server's state turned out to be older than before, since etcd was restored from a backup.
        self.num_rewinds = 0

    def __len__(self) -> int:
        return len(self._entries)

    def records(self) -> Iterator[T]:
        """All records."""
        return (entry.record for entry in self._entries.values())

    def get(self, namespace: str, name: str) -> T | None:
        """The record of one object; None if none is known."""
        entry = self._entries.get((namespace, name))
        return entry.record if entry else None

    def latest_versions(self) -> dict[str, int]:
        """The newest version of any object in each namespace."""
        latest: dict[str, int] = {}
        for (namespace, _), entry in self._entries.items():
            latest[namespace] = max(entry.version, latest.get(namespace, 0))
        return latest

    def put(self, body: Body) -> bool:
        """Store a version of an object. Returns whether it was new."""
        metadata = body["metadata"]
        key = (metadata["namespace"], metadata["name"])
        version, uid = int(metadata["resourceVersion"]), metadata["uid"]
        known = self._entries.get(key)
        if known is not None and known.version >= version:
            return False
        old = known.record if known else None
        try:
            record = self._parse(body, old if known and known.uid == uid else None)
        except (ValueError, KeyError, TypeError) as error:
            logger.debug("%s %s/%s is not ours: %s", self.resource.plural, *key, error)
            return self.remove(*key, uid=known.uid) if known else False
        self._entries[key] = _Entry(version, uid, record)
        if record != old:  # Most of what changes in a pod is of no interest here.
            self._changed(key[0], old, record)
        return True

    def put_answer(self, body: Body) -> None:
        """Store the answer to a write, unless the deletion of the object has been observed in the meantime."""
        metadata = body["metadata"]
        known = self._entries.get((metadata["namespace"], metadata["name"]))
        if known is not None and known.uid == metadata["uid"]:
            self.put(body)

    def remove(self, namespace: str, name: str, *, uid: str) -> bool:
        """Remove this very object, which no longer exists. Returns whether it was known."""
        for tombstones in self._tombstones:
            tombstones.add(uid)
        known = self._entries.get((namespace, name))
        if known is None or known.uid != uid:
            return False
        del self._entries[namespace, name]
        self._changed(namespace, known.record, None)
        return True

    async def refresh(
        self,
        client: Client,
        namespace: str | None,
        *,
        labels: str | None = None,
        covers: Callable[[T], bool] | None = None,
        heard: Callable[[], None] = lambda: None,
    ) -> tuple[str, int]:
        """Compare with the server's latest state and repair what differs.

        `labels` narrows the list; `covers` is then whether that list would contain a record. `heard` is called for each
        part of the list. Returns the version of the state, to watch from, and the number of differences. Other sources
        may put and remove meanwhile.
        """
        tombstones: set[str] = set()  # What goes while we list must not come back from an earlier page.
        self._tombstones.append(tombstones)
        listed: set[str] = set()
        num_repairs, version = 0, ""
        newest = max((entry.version for key, entry in self._entries.items() if namespace in (None, key[0])), default=0)
        try:
            everything = client.everything if labels is None else client.pages
            async for page in everything(self.resource, namespace, self.labels if labels is None else labels):
                heard()
                version = page.resource_version
                for body in page.items:
                    uid = body["metadata"]["uid"]
                    listed.add(uid)
                    if uid not in tombstones:
                        num_repairs += self.put(body)
                listed -= page.gone
        finally:
            # By identity: another refresh that runs has an equal, empty set.
            self._tombstones = [others for others in self._tombstones if others is not tombstones]
        if int(version) < newest:  # A list shows the latest state, which cannot be older than what was known before it.
            logger.warning("the state of %s went back to version %s, as after a restore", self.resource.plural, version)
            self.num_rewinds += 1
            self._entries = {key: replace(entry, version=0) for key, entry in self._entries.items()}
            return await self.refresh(client, namespace, labels=labels, covers=covers, heard=heard)
        for key, entry in list(self._entries.items()):
            in_scope = (namespace is None or key[0] == namespace) and (covers is None or covers(entry.record))
            if in_scope and entry.uid not in listed and entry.version <= int(version):
                num_repairs += self.remove(*key, uid=entry.uid)
        return version, num_repairs
