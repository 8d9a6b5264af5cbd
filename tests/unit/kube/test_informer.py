"""How a cache follows a watch that breaks. Real watches break in tests/cluster/operator/faults."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from ddpjob_operator.kube.cache import informer as module
from ddpjob_operator.kube.cache.cache import Cache
from ddpjob_operator.kube.cache.informer import Informer
from ddpjob_operator.transport.client import Event, Page
from ddpjob_operator.transport.errors import ApiError, GoneError, UnavailableError
from ddpjob_operator.transport.resources import PODS
from support.bodies import pod_body
from support.engine import happens


class Server:
    """Lists its pods at version 10, then at 20, and plays one script for each watch: events, and at its end an error."""

    def __init__(self, *scripts: list[Event | ApiError]) -> None:
        self.pods = [pod_body(4)]
        self.scripts, self.watched_from, self.num_lists = list(scripts), list[str](), 0

    async def pages(self, *_: Any) -> AsyncIterator[Page]:
        self.num_lists += 1
        yield Page(items=self.pods, resource_version=str(10 * self.num_lists))

    everything = pages

    async def watch(self, *arguments: Any) -> AsyncGenerator[Event, None]:
        self.watched_from.append(arguments[-1])
        for step in self.scripts.pop(0) if self.scripts else ():
            if isinstance(step, ApiError):
                self.pods = []
                raise step
            yield step
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("error", "version", "num_lists", "num_left"),
    [(UnavailableError("watch pods", "cut"), "12", 1, 1), (GoneError("watch pods", "too old"), "20", 2, 0)],
    ids=["the connection ended", "the version is too old"],
)
async def test_a_broken_watch_continues_after_its_last_event_and_lists_only_what_the_server_has_forgotten(
    error: ApiError, version: str, num_lists: int, num_left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list, which is expensive, also shows what was deleted meanwhile."""
    monkeypatch.setattr(module, "FIRST_BACKOFF_SECONDS", 0.0)
    server = Server([Event(type="MODIFIED", body=pod_body(12)), error])
    pods = Cache[str](PODS, "", lambda body, _: str(body["metadata"]["resourceVersion"]), lambda *_: None)
    task = asyncio.create_task(Informer(server, pods, None).run())  # type: ignore[arg-type]  # it does what is called
    await happens(lambda: len(server.watched_from) == 2)
    assert (server.watched_from, server.num_lists, len(pods)) == (["10", version], num_lists, num_left)
    task.cancel()
