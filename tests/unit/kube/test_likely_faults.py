"""What seldom happens between this process and the API server."""

from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from ddpjob_operator.core.records import service_of
from ddpjob_operator.core.render.service import ensure_service, service_name
from ddpjob_operator.kube.engine.reconciler import NOT_SENT_SECONDS
from ddpjob_operator.kube.keys import Key
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.connection import Connection, Request
from ddpjob_operator.transport.errors import NotSentError
from ddpjob_operator.transport.resources import PODS
from support.bodies import job_body, pod_body
from support.builders import job
from support.engine import Engine
from support.fake_server import FakeServer

KEY = ("ns", "j")


async def test_what_was_not_sent_without_the_lease_is_tried_again_without_a_back_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a job waits up to 37 s after the Lease is held again."""
    engine = Engine(None, progress_interval_seconds=0)
    delays: list[float] = []

    async def reconcile(_: Any, __: Key) -> None:
        raise NotSentError("create", "not sent")

    monkeypatch.setattr(type(engine.reconciler), "reconcile", reconcile)
    monkeypatch.setattr(engine.queue, "add_after", lambda _, seconds: delays.append(seconds))
    for _ in range(20):
        await engine.reconciler._reconcile_or_retry(KEY)
    assert delays == [NOT_SENT_SECONDS] * 20


@pytest.mark.parametrize("is_owned", [True, False])
async def test_pods_that_were_freed_of_their_owner_are_not_deleted_with_it(is_owned: bool) -> None:
    """`kubectl delete --cascade=orphan`, of which this process has seen neither the finalizer nor the change of the pods."""
    server = FakeServer()
    owned: dict[str, Any] = {} if is_owned else {"ownerReferences": []}
    server.put(PODS, pod_body(9, **owned))
    engine = Engine(server, progress_interval_seconds=0)
    engine.store.jobs.put(job_body(1))
    engine.store.pods.put(pod_body(2))
    engine.store.jobs.remove("ns", "j", uid="job-1")
    await engine.reconciler.reconcile(KEY)
    assert server.num("deletecollection") == int(is_owned)
    assert not engine.store.orphaned(KEY)


def test_a_pod_that_succeeded_without_the_states_of_its_containers_has_succeeded() -> None:
    engine = Engine(None, progress_interval_seconds=0)
    engine.store.pods.put({**pod_body(2), "status": {"phase": "Succeeded"}})
    (pod,) = engine.store.pods.records()
    assert pod.succeeded


def test_a_master_service_that_hides_pods_which_are_not_ready_is_set_back() -> None:
    of = job(nodes=2)
    assert of.spec is not None
    (creation,) = ensure_service(of, of.spec, None)
    body: Any = creation.body
    metadata = {**body["metadata"], "uid": "u", "resourceVersion": "1"}
    assert ensure_service(of, of.spec, service_of({**body, "metadata": metadata})) == ()
    changed = {**body, "metadata": metadata, "spec": {**body["spec"], "publishNotReadyAddresses": False}}
    (patch,) = ensure_service(of, of.spec, service_of(changed))
    assert patch.name == service_name("job")
    assert patch.patch["spec"]["publishNotReadyAddresses"] is True


async def test_a_deletion_of_thousands_of_pods_may_take_longer_than_another_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The API server deletes one after the other, and ends its own request after a minute."""
    sent: list[Request] = []

    async def read(_: Connection, request: Request) -> bytes:
        sent.append(request)
        return b""

    monkeypatch.setattr(Connection, "read", read)
    async with Client(Configuration()) as client:
        await client.delete_collection(PODS, "ns", "a=b")
    assert (sent[0].limits.total or 0) > 60
