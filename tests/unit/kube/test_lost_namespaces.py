"""One watched namespace that is gone, with its Role, or that forbids everything holds up none of the others."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import pytest

from ddpjob_operator.kube.cache import informer as informers
from ddpjob_operator.kube.cache.audit import Audit
from ddpjob_operator.kube.cache.informer import Informer
from ddpjob_operator.kube.cache.store import Store
from ddpjob_operator.kube.rights import may_make_network_policies
from ddpjob_operator.kube.scheduling import discover
from ddpjob_operator.transport.client import Event, Page
from ddpjob_operator.transport.errors import RejectedError, UnavailableError
from ddpjob_operator.transport.resources import Resource
from support.bodies import job_body
from support.engine import happens, new_store

SCOPES = ("a", "b", "c")


class Server:
    """Has one job in each namespace and serves Kueue; `forbidden` are the rights that it does not grant, by namespace."""

    def __init__(self, **forbidden: str) -> None:
        self.forbidden = forbidden
        self.is_down = False

    async def everything(self, _resource: Resource, namespace: str, *_: Any) -> AsyncIterator[Page]:
        if self.forbidden.get(namespace) == "*":
            raise RejectedError("list", f"cannot list in the namespace {namespace}", status=403)
        if self.is_down and namespace == "b":
            raise UnavailableError("list", "sad", status=503)
        yield Page(items=[job_body(4, uid=f"uid-{namespace}", namespace=namespace)], resource_version="5")

    async def watch(self, *_: Any) -> AsyncGenerator[Event, None]:
        await asyncio.Event().wait()
        yield Event(type="BOOKMARK", body={})

    async def group_versions(self, group: str) -> list[str]:
        return ["v1beta2"] if group == "kueue.x-k8s.io" else []

    async def create(self, _resource: Resource, _namespace: None, body: Any) -> Any:
        asked = body["spec"]["resourceAttributes"]
        return {"status": {"allowed": self.forbidden.get(asked["namespace"]) not in ("*", asked["resource"])}}


def store_of(server: Any, scopes: Sequence[str] = SCOPES) -> tuple[Store, Audit]:
    return new_store(), Audit(server, scopes, 240)


async def test_the_others_are_read_and_audited() -> None:
    store, audit = store_of(Server(b="*"))
    assert await audit.compare(store.jobs) == 2
    assert {known.job.namespace for known in store.jobs.records()} == {"a", "c"}


async def test_an_error_that_may_pass_in_one_is_tried_again_after_the_others_were_read() -> None:
    server = Server()
    server.is_down = True
    store, audit = store_of(server)
    with pytest.raises(UnavailableError):
        await audit.compare(store.jobs)
    assert {known.job.namespace for known in store.jobs.records()} == {"a", "c"}


async def test_an_operator_without_any_rights_says_so() -> None:
    store, audit = store_of(Server(a="*"), ("a",))
    with pytest.raises(RejectedError, match="cannot list in the namespace a"):
        await audit.compare(store.jobs)


async def test_its_informer_tries_again_and_reads_it_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informers, "REFUSED_SECONDS", 0.0)
    monkeypatch.setattr(informers, "FIRST_BACKOFF_SECONDS", 0.0)
    server: Any = Server(b="*")
    store, _ = store_of(server)
    informer = Informer(server, store.jobs, "b")
    task = asyncio.create_task(informer.run())
    await happens(lambda: informer.is_refused)
    assert not informer.synced.is_set()
    server.forbidden = {}
    await happens(informer.synced.is_set)
    assert (informer.is_refused, len(store.jobs)) == (False, 1)
    task.cancel()


@pytest.mark.parametrize(
    ("forbidden", "expected"),
    [
        ({}, ["kueue", "kueue", "kueue"]),
        ({"b": "*"}, ["kueue", "kueue", "kueue"]),
        ({"b": "workloads"}, ["kueue", "none", "kueue"]),
        ({"a": "*"}, ["kueue", "kueue", "kueue"]),
    ],
)
async def test_the_scheduling_provider_of_the_others_stays(forbidden: dict[str, str], expected: list[str]) -> None:
    server: Any = Server(**forbidden)
    choices = await discover(server, "auto", SCOPES)
    assert [choices[scope].provider.name for scope in SCOPES] == expected


async def test_jobs_of_the_others_keep_their_network_policies() -> None:
    server: Any = Server(b="*")
    assert await may_make_network_policies(server, SCOPES)
