"""The operator's own pages cost it little, however many clients ask for them and however they behave."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ddpjob_operator import probe
from ddpjob_operator.kube import health, pages
from ddpjob_operator.kube.health import Health
from ddpjob_operator.kube.pages import NUM_CONNECTIONS, Page
from support.engine import new_store


class Desk:
    """A page that is answered when the test says so, and counts who waits for it."""

    def __init__(self) -> None:
        self.num_waiting = self.most_waiting = 0
        self.may_answer, self.all_places_are_taken = asyncio.Event(), asyncio.Event()

    async def page(self) -> Page:
        self.num_waiting += 1
        self.most_waiting = max(self.num_waiting, self.most_waiting)
        if self.num_waiting == NUM_CONNECTIONS:
            self.all_places_are_taken.set()
        await self.may_answer.wait()
        self.num_waiting -= 1
        return Page(200, b"yes\n")


@pytest.fixture
async def desk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Desk, int]]:
    """A served desk and its port."""
    monkeypatch.setattr(pages, "CONNECTIONS_PER_SECOND", float("inf"))
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    at = Desk()
    async with pages.served(listener, {"/page": at.page}):
        yield at, listener.getsockname()[1]


async def ask(port: int, request: bytes = b"GET /page HTTP/1.1\r\n\r\n") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with closing(writer):
        writer.write(request)
        return await reader.read()


async def test_clients_beyond_the_limit_wait_until_others_are_answered(desk: tuple[Desk, int]) -> None:
    at, port = desk
    clients = [asyncio.create_task(ask(port)) for _ in range(4 * NUM_CONNECTIONS)]
    await at.all_places_are_taken.wait()
    for _ in range(100):  # turns of the loop, in which a server without the limit accepts the others
        await asyncio.sleep(0)
    assert at.most_waiting == NUM_CONNECTIONS
    at.may_answer.set()
    assert all(answer.endswith(b"\r\n\r\nyes\n") for answer in await asyncio.gather(*clients))


async def test_clients_that_ask_for_nothing_leave_their_places_to_others(
    desk: tuple[Desk, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    at, port = desk
    monkeypatch.setattr(pages, "ANSWER_SECONDS", 0.01)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * NUM_CONNECTIONS)]
    for reader, writer in silent:
        assert await reader.read() == b""
        writer.close()
    monkeypatch.setattr(pages, "ANSWER_SECONDS", 60.0)
    at.may_answer.set()
    assert (await ask(port)).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /page?x=1 HTTP/1.1\r\nAccept: */*\r\n\r\n", b"200"),
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /page HTTP/1.1\r\n\r\n", b"405"),
        (b"\xff\x00\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 9000, b"400"),
    ],
)
async def test_every_request_has_an_answer(desk: tuple[Desk, int], request_: bytes, status: bytes) -> None:
    at, port = desk
    at.may_answer.set()
    assert (await ask(port, request_)).split(b" ")[1] == status


async def test_a_page_that_fails_ends_no_other() -> None:
    async def broken() -> Page:
        raise KeyError("status")

    async def works() -> Page:
        return Page(200, b"yes\n")

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    async with pages.served(listener, {"/broken": broken, "/page": works}):
        assert (await ask(port, b"GET /broken HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 500 ")
        assert (await ask(port)).startswith(b"HTTP/1.1 200 ")


async def test_metrics_are_rendered_once_for_all_who_ask_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    renderings = 0

    def render(_: Any) -> bytes:
        nonlocal renderings
        renderings += 1
        return b""

    monkeypatch.setattr(health, "generate_latest", render)
    monkeypatch.setattr(health, "RENDERING_SECONDS", 0.2)
    asked = Health(new_store(), [], lambda: 0.0, lambda: True)
    for _ in range(3):
        await asyncio.gather(*(asked._metrics() for _ in range(50)))
    assert renderings == 3 * 2, "one for each time, of two registries"


async def test_probes_are_answered_on_a_socket_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "probes")
    asked = Health(new_store(), [], lambda: 0.0, lambda: True)
    for _ in range(2):  # the file is left by a container that was killed
        async with asked.served(0, path):
            assert await asyncio.to_thread(probe.main, path, "/livez") == 0
            assert await asyncio.to_thread(probe.main, path, "/readyz") == 1
    assert capsys.readouterr().out == "ok\nstarting\n" * 2
    assert await asyncio.to_thread(probe.main, path, "/livez") == 1
