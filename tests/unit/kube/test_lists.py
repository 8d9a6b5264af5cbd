"""How lists are read: one object at a time where the server has watch lists, else in small pages, and not from the start after a 429.

The server is a small one on this machine; the real one is in tests/cluster/operator/test_client.py.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from ddpjob_operator.kube.cache.cache import Cache
from ddpjob_operator.transport import client as module
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ThrottledError, UnavailableError
from ddpjob_operator.transport.resources import PODS
from support.bodies import pod_body

LISTED = {"metadata": {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}}
NO_WATCH_LISTS = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"


def numbered(number: int) -> dict[str, Any]:
    return pod_body(number, name=f"pod-{number}", uid=f"uid-{number}")


def line(kind: str, body: dict[str, Any]) -> str:
    return json.dumps({"type": kind, "object": body}) + "\n"


@asynccontextmanager
async def serving(answer: Callable[[web.Request], web.Response]) -> AsyncIterator[Client]:
    """A client of a server that answers each request in this way."""

    async def handle(request: web.Request) -> web.Response:
        return answer(request)

    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with Client(configuration) as client:
        yield client
    await runner.cleanup()


def names(pods: Cache[str]) -> set[str]:
    return set(pods.records())


def pods() -> Cache[str]:
    return Cache[str](PODS, "", lambda body, _: str(body["metadata"]["name"]), lambda *_: None)


async def test_a_watch_list_gives_one_object_at_a_time_and_what_was_deleted_meanwhile_is_none_of_the_list() -> None:
    events = [line("ADDED", numbered(number)) for number in (1, 2, 3)] + [line("DELETED", numbered(2))]
    queries: list[str] = []

    def answer(request: web.Request) -> web.Response:
        queries.append(request.query_string)
        return web.Response(text="".join((*events, line("BOOKMARK", LISTED))))

    async with serving(answer) as client:
        assert [len(page.items) async for page in client.everything(PODS, None)] == [1, 1, 1, 1, 0]
        cache = pods()
        assert await cache.refresh(client, None) == ("9", 4)
        assert names(cache) == {"pod-1", "pod-3"}
    assert all("sendInitialEvents=true&resourceVersionMatch=NotOlderThan" in query for query in queries)


async def test_a_watch_list_that_ends_before_its_bookmark_is_no_list() -> None:
    """Otherwise all that was not sent yet would count as deleted, and gangs would restart."""
    cache = pods()
    cache.put(numbered(2))
    async with serving(lambda _: web.Response(text=line("ADDED", numbered(1)))) as client:
        with pytest.raises(UnavailableError, match="ended before"):
            await cache.refresh(client, None)
    assert names(cache) == {"pod-1", "pod-2"}


async def test_after_a_watch_list_that_broke_the_next_list_comes_in_pages_and_the_one_after_it_is_a_watch_list() -> (
    None
):
    answers = {True: line("ADDED", numbered(1)), False: json.dumps({"metadata": {"resourceVersion": "9"}, "items": []})}
    streamed: list[bool] = []

    def answer(request: web.Request) -> web.Response:
        streamed.append("sendInitialEvents" in request.query)
        return web.Response(text=answers[streamed[-1]])

    async with serving(answer) as client:
        for _ in range(2):
            with pytest.raises(UnavailableError, match="ended before"):
                await pods().refresh(client, None)
            await pods().refresh(client, None)
    assert streamed == [True, False, True, False]


class PagedServer:
    """Refuses watch lists, gives 120 pods in pages of the size that is asked for, and 429 to each of `throttled` requests."""

    def __init__(self, *throttled: int) -> None:
        self.throttled, self.starts, self.num_pages = throttled, list[int](), 0

    def __call__(self, request: web.Request) -> web.Response:
        if "watch" in request.query:
            return web.json_response({"message": NO_WATCH_LISTS}, status=422)
        self.num_pages += 1
        if self.num_pages in self.throttled:
            return web.Response(status=429, headers={"Retry-After": "0.1"})
        first, size = int(request.query.get("continue", 0)), int(request.query["limit"])
        self.starts.append(first)
        rest = {"continue": str(first + size)} if first + size < 120 else {}
        items = [numbered(number) for number in range(first + 1, min(first + size, 120) + 1)]
        return web.json_response({"metadata": {"resourceVersion": "200", **rest}, "items": items})


async def test_a_server_without_watch_lists_gives_small_pages_and_is_asked_for_one_only_once() -> None:
    server = PagedServer()
    async with serving(server) as client:
        assert [len(page.items) async for page in client.everything(PODS, None)] == [50, 50, 20]
        assert [len(page.items) async for page in client.everything(PODS, None)] == [50, 50, 20]
    assert server.num_pages == 6


async def test_a_page_that_the_server_throttles_is_requested_again_and_the_list_goes_on_from_there() -> None:
    server = PagedServer(2, 3)
    async with serving(server) as client:
        assert await (cache := pods()).refresh(client, None) == ("200", 120)
    assert (server.starts, len(cache)) == ([0, 50, 100], 120)


async def test_a_list_that_the_server_throttles_for_long_fails_with_the_time_to_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PAGE_TRIES", 2)
    async with serving(PagedServer(*range(1, 9))) as client:
        with pytest.raises(ThrottledError) as caught:
            await pods().refresh(client, None)
    assert caught.value.retry_after_seconds == 0.1
