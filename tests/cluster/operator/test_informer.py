"""The informer against a real API server, with streams that break at chosen moments."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ddpjob_operator.api import names
from ddpjob_operator.core.model import Pod
from ddpjob_operator.kube.cache.audit import Audit
from ddpjob_operator.kube.cache.informer import Informer
from ddpjob_operator.kube.cache.store import Store
from ddpjob_operator.transport.client import Client, Event
from ddpjob_operator.transport.errors import GoneError, UnavailableError
from ddpjob_operator.transport.resources import PODS, Resource
from operator_cluster import SECONDS, Namespace, eventually


def pod(name: str, job_uid: str = "j1", rank: int = 0) -> dict[str, Any]:
    """A pod as the operator creates it. Its owner does not exist; the type of the owner keeps the garbage collector away."""
    labels = {
        names.MANAGED_BY: names.MANAGER,
        names.LABEL_JOB_UID: job_uid,
        names.LABEL_ATTEMPT: "1",
        names.LABEL_RANK: str(rank),
    }
    owner = {"apiVersion": "test/v1", "kind": names.KIND, "name": "j", "uid": job_uid, "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "trainer", "image": "x"}]},
    }


class BrokenStreams:
    """A client whose watches can be made to fail; everything else is real."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.failure: Exception | None = None
        self.num_watches = 0
        self._cut = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def break_with(self, failure: Exception) -> None:
        self.failure = failure
        self._cut.set()

    def restore(self) -> None:
        self.failure = None
        self._cut.clear()

    async def watch(self, resource: Resource, *arguments: Any) -> AsyncIterator[Event]:
        if self.failure:
            raise self.failure
        self.num_watches += 1
        stream = self._client.watch(resource, *arguments)
        while True:
            following = asyncio.ensure_future(anext(stream))
            cutting = asyncio.ensure_future(self._cut.wait())
            done, _ = await asyncio.wait([following, cutting], return_when=asyncio.FIRST_COMPLETED)
            cutting.cancel()
            if following not in done:
                following.cancel()
                assert self.failure is not None
                raise self.failure
            yield following.result()


@asynccontextmanager
async def following(client: Any, namespace: Namespace) -> AsyncIterator[tuple[Store, Informer]]:
    store = Store(lambda _, **__: None, lambda *_: None)
    informer = Informer(client, store.pods, namespace.name)
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(informer.synced.wait(), SECONDS)
    yield store, informer
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def known(store: Store, namespace: Namespace, name: str) -> Pod | None:
    return store.pods.get(namespace.name, name)


async def appears(store: Store, namespace: Namespace, name: str) -> Pod:
    return await eventually(f"{name} to appear", lambda: known(store, namespace, name))


async def goes(store: Store, namespace: Namespace, name: str) -> None:
    await eventually(f"{name} to go", lambda: known(store, namespace, name) is None)


async def test_a_new_list_shows_a_deletion_that_the_watch_missed(client: Client, namespace: Namespace) -> None:
    broken = BrokenStreams(client)
    for name in ("stays", "vanishes"):
        await client.create(PODS, namespace.name, pod(name))
    async with following(broken, namespace) as (store, _):
        broken.break_with(UnavailableError("watch pods", "cut"))
        await namespace.delete_pod("vanishes", grace_seconds=0)
        await client.create(PODS, namespace.name, pod("new"))
        assert known(store, namespace, "vanishes")
        broken.break_with(GoneError("watch pods", "too old"))
        await goes(store, namespace, "vanishes")
        assert known(store, namespace, "stays")
        assert known(store, namespace, "new")
        broken.restore()
        await client.create(PODS, namespace.name, pod("later"))
        await appears(store, namespace, "later")


async def test_a_watch_that_was_cut_continues_without_a_list(client: Client, namespace: Namespace) -> None:
    broken = BrokenStreams(client)
    async with following(broken, namespace) as (store, _):
        await client.create(PODS, namespace.name, pod("first"))
        await appears(store, namespace, "first")
        broken.break_with(UnavailableError("watch pods", "cut"))
        await client.create(PODS, namespace.name, pod("meanwhile"))
        await namespace.delete_pod("first", grace_seconds=0)
        num_watches = broken.num_watches
        broken.restore()
        await goes(store, namespace, "first")
        assert known(store, namespace, "meanwhile")
        assert broken.num_watches > num_watches


async def test_a_version_too_old_for_the_server_leads_to_a_list(client: Client, namespace: Namespace) -> None:
    store = Store(lambda _, **__: None, lambda *_: None)
    await namespace.apply("a")
    informer = Informer(client, store.jobs, namespace.name)
    informer._version = "1"  # older than the CRD; as after an hour of sleep
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(informer.synced.wait(), SECONDS)
    task.cancel()
    assert store.job((namespace.name, "a"))


async def test_an_audit_repairs_what_every_watch_has_missed(client: Client, namespace: Namespace) -> None:
    store = Store(lambda _, **__: None, lambda *_: None)
    ghost, unseen = pod("ghost"), pod("unseen")
    unseen["spec"]["schedulerName"] = "nobody"  # so that nothing changes it
    store.pods.put(await client.create(PODS, namespace.name, ghost))
    await namespace.delete_pod("ghost", grace_seconds=0)
    await client.create(PODS, namespace.name, unseen)
    audit = Audit(client, (namespace.name,), interval_seconds=60)
    assert await audit.compare(store.pods) == 2
    assert known(store, namespace, "ghost") is None
    assert known(store, namespace, "unseen")
    assert await audit.compare(store.pods) == 0
