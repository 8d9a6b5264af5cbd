"""The fault proxy does to a client what it says, and nothing else."""

import asyncio
import json
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

import testbed
from testbed.faultproxy import FaultProxy
from testbed.faults import Answer, CutStream, Hold, LoseAnswer, LoseRequest, Silence, StreamError
from testbed.kubectl import Kubectl


@pytest.fixture(scope="module")
def running(control_plane: testbed.ControlPlane) -> Iterator[FaultProxy]:
    with FaultProxy(control_plane, seed=1) as proxy:
        yield proxy


@pytest.fixture
def proxy(running: FaultProxy) -> Iterator[FaultProxy]:
    yield running
    running.clear()


class Maps:
    """ConfigMaps of one namespace, through the proxy and past it."""

    def __init__(self, session: aiohttp.ClientSession, server: str, namespace: str, direct: Kubectl) -> None:
        self._session, self._direct, self.namespace = session, direct, namespace
        self._url = f"{server}/api/v1/namespaces/{namespace}/configmaps"

    def create(self, name: str) -> Any:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        return self._session.post(self._url, json=body)

    def list(self) -> Any:
        return self._session.get(self._url)

    def watch(self) -> Any:
        return self._session.get(self._url + "?watch=true")

    def watch_list(self, name: str) -> Any:
        query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        return self._session.get(f"{self._url}?{query}&fieldSelector=metadata.name={name}")

    def exists(self, name: str) -> bool:
        return bool(self._direct("get", "configmap", name, "-n", self.namespace, "--ignore-not-found", "-o", "name"))

    def create_directly(self, name: str) -> None:
        self._direct("create", "configmap", name, "-n", self.namespace)


@pytest.fixture
async def maps(proxy: FaultProxy, control_plane: testbed.ControlPlane, bare_namespace: str) -> AsyncIterator[Maps]:
    cluster = json.loads(proxy.kubeconfig.read_text())["clusters"][0]["cluster"]
    trust = ssl.create_default_context(cafile=str(control_plane.keys / "ca.crt"))
    # One connection a request: aiohttp would try again by itself on a connection that it has used before.
    connector = aiohttp.TCPConnector(ssl=trust, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Maps(session, cluster["server"], bare_namespace, control_plane.kubectl)


async def first_lines(answer: aiohttp.ClientResponse, count: int) -> list[Any]:
    return [json.loads(await asyncio.wait_for(answer.content.readline(), 240)) for _ in range(count)]


@pytest.mark.parametrize("status", [409, 429, 500, 503])
async def test_a_refusal_looks_like_the_server_s_and_nothing_is_executed(
    maps: Maps, proxy: FaultProxy, status: int
) -> None:
    rule = proxy.inject(Answer(status, retry_after_seconds=2), verbs=("create",), times=1)
    async with maps.create("a") as answer:
        assert answer.status == status
        assert answer.headers["Retry-After"] == "2"
        body = await answer.json()
    assert (body["kind"], body["code"]) == ("Status", status)
    assert not maps.exists("a")
    async with maps.create("a") as answer:
        assert answer.status == 201
    assert rule.num_struck == 1


async def test_a_rule_can_skip_matches_end_and_strike_with_a_probability(maps: Maps, proxy: FaultProxy) -> None:
    async def statuses(count: int) -> list[int]:
        found = []
        for _ in range(count):
            async with maps.list() as answer:
                found.append(answer.status)
        return found

    proxy.inject(Answer(503), skip=1, times=2)
    assert await statuses(5) == [200, 503, 503, 200, 200]
    proxy.clear()
    proxy.inject(Answer(503), probability=0.5)
    assert 30 < (await statuses(100)).count(503) < 70
    proxy.clear()
    assert await statuses(3) == [200, 200, 200]


async def test_a_request_that_is_held_is_done_later_though_its_client_is_gone(maps: Maps, proxy: FaultProxy) -> None:
    released = threading.Event()
    rule = proxy.inject(Hold(released), verbs=("create",))

    async def create() -> None:
        await maps.create("a")

    creating = asyncio.create_task(create())
    await asyncio.to_thread(testbed.wait_for, "the proxy to hold it", lambda: rule.num_struck == 1, seconds=240)
    creating.cancel()
    await asyncio.wait((creating,))
    assert not maps.exists("a")
    released.set()
    testbed.wait_for("the ConfigMap", lambda: maps.exists("a"))


async def test_a_lost_request_is_not_executed_and_one_with_a_lost_answer_is(maps: Maps, proxy: FaultProxy) -> None:
    moments: list[bool] = []
    proxy.inject(LoseRequest(lambda: moments.append(maps.exists("a"))), verbs=("create",), times=1)
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await maps.create("a")
    proxy.inject(LoseAnswer(lambda: moments.append(maps.exists("a"))), verbs=("create",), times=1)
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await maps.create("a")
    assert moments == [False, True]


@pytest.mark.parametrize("mid_line", [False, True])
async def test_a_watch_is_cut_at_an_event(maps: Maps, proxy: FaultProxy, *, mid_line: bool) -> None:
    async with maps.watch() as answer:
        await first_lines(answer, 1)  # What a new namespace has.
        proxy.inject(CutStream(mid_line), verbs=("watch",), target=maps.namespace, skip=1)
        maps.create_directly("a")
        await first_lines(answer, 1)
        maps.create_directly("b")
        rest = bytearray()

        async def read_to_the_end() -> None:
            async for chunk in answer.content.iter_any():
                rest.extend(chunk)

        with pytest.raises(aiohttp.ClientPayloadError):
            await asyncio.wait_for(read_to_the_end(), 240)
    assert rest.startswith(b'{"type":"ADDED"') == mid_line
    assert not rest.endswith(b"\n")


async def test_a_watch_list_passes_event_by_event(maps: Maps) -> None:
    """Kubernetes 1.37 compresses each of its events for clients that accept it, as those of aiohttp do."""
    maps.create_directly("a")
    async with maps.watch_list("a") as answer:
        assert [event["type"] for event in await first_lines(answer, 2)] == ["ADDED", "BOOKMARK"]


async def test_a_silent_watch_stays_open_and_sends_nothing(maps: Maps, proxy: FaultProxy) -> None:
    async with maps.watch() as answer:
        await first_lines(answer, 1)
        proxy.inject(Silence(), verbs=("watch",), target=maps.namespace, times=1)
        maps.create_directly("a")
        maps.create_directly("b")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(answer.content.readline(), 0.5)
        assert not answer.content.at_eof()
    async with maps.watch() as answer:  # The next one speaks.
        await first_lines(answer, 3)


async def test_a_watch_gets_an_error_event_and_ends(maps: Maps, proxy: FaultProxy) -> None:
    proxy.inject(StreamError(410), verbs=("watch",), target=maps.namespace, skip=1)
    async with maps.watch() as answer:
        maps.create_directly("a")
        first, error = await first_lines(answer, 2)
        assert (first["type"], error["type"], error["object"]["code"]) == ("ADDED", "ERROR", 410)
        assert await answer.content.readline() == b""
