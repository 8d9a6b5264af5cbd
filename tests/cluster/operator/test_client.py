"""What the client reads from a real API server. test_actuator.py and test_status_preconditions.py use its writes."""

import asyncio
from typing import Any

import pytest

import testbed
from ddpjob_operator.kube.cache.informer import Informer
from ddpjob_operator.transport import client as module
from ddpjob_operator.transport import errors
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.resources import DDPJOBS, PODS, Resource
from support.engine import new_store
from support.operator_cluster import SECONDS, Namespace, eventually

CONFIG_MAPS = Resource(prefix="/api/v1", plural="configmaps")


def config_map(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "trainer", "image": "x"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **spec},
    }


async def test_all_pages_of_a_list_have_one_version(
    client: Client, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE_SIZE", 2)
    for number in range(5):
        await client.create(CONFIG_MAPS, namespace.name, config_map(f"c{number}", app="x" if number != 3 else "y"))
    pages = [page async for page in client.pages(CONFIG_MAPS, namespace.name, "app=x")]
    assert [item["metadata"]["name"] for page in pages for item in page.items] == ["c0", "c1", "c2", "c4"]
    assert len({page.resource_version for page in pages}) == 1


@pytest.mark.parametrize("streams", [True, False], ids=["a watch list", "pages"])
async def test_everything_is_listed_one_object_at_a_time_where_the_server_allows_it(
    client: Client, namespace: Namespace, streams: bool
) -> None:
    client._streams_lists = streams
    for number in range(5):
        await client.create(CONFIG_MAPS, namespace.name, config_map(f"c{number}", app="x" if number != 3 else "y"))
    pages = [page async for page in client.everything(CONFIG_MAPS, namespace.name, "app=x")]
    assert sorted(item["metadata"]["name"] for page in pages for item in page.items) == ["c0", "c1", "c2", "c4"]
    assert int(pages[-1].resource_version) > 0
    assert [len(page.items) for page in pages] == ([1, 1, 1, 1, 0] if streams else [4])
    assert client._streams_lists == streams


async def test_a_version_too_old_for_the_server_leads_to_a_list(client: Client, namespace: Namespace) -> None:
    store = new_store()
    await namespace.apply("a")
    informer = Informer(client, store.jobs, namespace.name)
    informer._version = "1"  # older than the CRD; as after an hour of sleep
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(informer.synced.wait(), SECONDS)
    task.cancel()
    assert store.job((namespace.name, "a"))


async def test_the_end_of_a_log_is_read(client: Client, namespace: Namespace, cluster: testbed.ControlPlane) -> None:
    with pytest.raises(errors.NotFoundError):
        await _log(client, namespace, "a")
    await client.create(PODS, namespace.name, pod("a"))
    cluster.append_kwok_log(namespace.name, "a", "one\ntwo\nthree")

    async def text() -> str:
        try:
            return await _log(client, namespace, "a")
        except errors.RejectedError:  # Not running yet.
            return ""

    assert (await eventually("the log", text)).split() == ["two", "three"]


async def test_a_server_that_does_not_listen_is_unavailable(client: Client) -> None:
    client._connection._server = "https://127.0.0.1:1"
    with pytest.raises(errors.UnavailableError):
        await client.get(CONFIG_MAPS, "default", "a")


async def test_the_client_reports_whether_a_type_is_served(client: Client) -> None:
    assert await client.serves(DDPJOBS)
    assert not await client.serves(Resource(prefix="/api/v1", plural="ddpjobs"))


async def _log(client: Client, namespace: Namespace, name: str) -> str:
    return await client.pod_log(
        namespace.name, name, container="trainer", tail_lines=2, limit_bytes=4096, timeout_seconds=5
    )
