"""How a cache follows a watch that breaks. Real watches break in tests/cluster/operator/faults."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from typing import Any, cast

import pytest

from ddpjob_operator.kube.cache.cache import Cache
from ddpjob_operator.kube.cache.informer import Informer
from ddpjob_operator.transport.client import Client, Event, Page
from ddpjob_operator.transport.errors import ApiError, GoneError, RejectedError, ThrottledError, UnavailableError
from ddpjob_operator.transport.resources import PODS
from support.bodies import pod_body
from support.engine import happens
from support.fake_server import FakeServer


@pytest.mark.parametrize(
    ("error", "version", "num_lists", "num_left"),
    [(UnavailableError("watch pods", "cut"), "12", 1, 1), (GoneError("watch pods", "too old"), "20", 2, 0)],
    ids=["the connection ended", "the version is too old"],
)
async def test_a_broken_watch_continues_after_its_last_event_and_lists_only_what_the_server_has_forgotten(
    error: ApiError, version: str, num_lists: int, num_left: int
) -> None:
    """A list, which is expensive, also shows what was deleted meanwhile."""
    server, seen_before = FakeServer(), pod_body(4)
    server.version = 9
    server.put(PODS, seen_before)

    def breaks() -> Iterator[Event | ApiError]:
        yield Event(type="MODIFIED", body=pod_body(12))
        server.remove(PODS, seen_before["metadata"]["name"])
        server.version = 20
        yield error

    server.watches[PODS.plural] = iter([breaks()])
    pods = Cache[str](PODS, "", lambda body, _: str(body["metadata"]["resourceVersion"]), lambda *_: None)
    task = asyncio.create_task(Informer(cast("Client", server), pods, None).run())
    await happens(lambda: server.num("watch") == 2)
    watched_from = [request.name for request in server.requests if request.verb == "watch"]
    assert (watched_from, server.num("list"), len(pods)) == (["10", version], num_lists, num_left)
    task.cancel()


def informer_of(server: FakeServer, namespace: str | None = None) -> Informer:
    pods = Cache[str](PODS, "", lambda body, _: str(body["metadata"]["resourceVersion"]), lambda *_: None)
    return Informer(cast("Client", server), pods, namespace)


@pytest.mark.usefixtures("virtual_clocks")
async def test_a_list_that_the_server_throttles_is_tried_again_no_sooner_than_it_says() -> None:
    busy = iter([ThrottledError("list pods", "busy", retry_after_seconds=1000)])
    informer = informer_of(FakeServer(refuse=lambda request: next(busy, None) if request.verb == "list" else None))
    began = asyncio.get_running_loop().time()
    task = asyncio.create_task(informer.run())
    await informer.synced.wait()
    assert asyncio.get_running_loop().time() - began >= 1000
    task.cancel()


class SlowServer(FakeServer):
    """Sends a part of a list every 100 seconds."""

    async def everything(self, *_: Any, **_more: Any) -> AsyncIterator[Page]:
        """Three parts."""
        for _number in range(3):
            yield Page(items=[], resource_version="1")
            await asyncio.sleep(100)


@pytest.mark.usefixtures("virtual_clocks")
async def test_each_part_of_a_list_is_a_sign_of_life() -> None:
    informer = informer_of(SlowServer())
    task = asyncio.create_task(informer.run())
    await asyncio.sleep(250)
    assert not informer.synced.is_set()
    assert (informer.stale_seconds, informer.stuck_seconds) == pytest.approx((50, 50))
    task.cancel()


@pytest.mark.usefixtures("virtual_clocks")
@pytest.mark.parametrize(
    ("server", "namespace", "fails"),
    [
        (SlowServer(), None, False),
        (FakeServer(refuse=lambda _: RejectedError("list pods", "forbidden", status=403)), "gone", False),
        (FakeServer(refuse=lambda _: RejectedError("list pods", "forbidden", status=403)), None, True),
        (FakeServer(hang=lambda _: True), "a", True),
    ],
    ids=["parts of it arrive", "its namespace is forbidden", "everything is forbidden", "nothing arrives"],
)
async def test_a_start_waits_for_the_first_list_while_it_may_come(
    server: FakeServer, namespace: str | None, fails: bool
) -> None:
    informer = informer_of(server, namespace)
    task = asyncio.create_task(informer.run())
    with pytest.raises(TimeoutError, match="nothing of the first list") if fails else nullcontext():
        await informer.first_list(120)
    task.cancel()
