"""A server of short HTTP answers that a flood of requests cannot take the event loop with.

It accepts few connections at a time, each for one request, and begins few a second. Whoever else connects waits in the
socket's queue in the kernel and costs this process nothing. aiohttp's server accepts all connections, and keeps them.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from http import HTTPStatus

logger = logging.getLogger(__name__)

#: Connections that are open at the same time, and those that begin in a second: a scrape and a person's request next to it
#: need two. Assumptions, not studied.
NUM_CONNECTIONS = 16
CONNECTIONS_PER_SECOND = 50
#: For request and answer together: a client that sends or reads slowly holds its place no longer.
ANSWER_SECONDS = 5.0
MAX_REQUEST_BYTES = 8192
#: After the system has refused to accept a connection, for example because too many files are open.
RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Page:
    """An answer: status code and text."""

    status: int
    text: bytes


Pages = Mapping[str, Callable[[], Awaitable[Page]]]


@asynccontextmanager
async def served(listener: socket.socket, pages: Pages) -> AsyncIterator[None]:
    """Serve `pages`, by path, to whoever connects to `listener` until the block ends."""
    listener.setblocking(False)
    serving = asyncio.create_task(_serve(listener, pages))
    try:
        yield
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
        listener.close()


async def _serve(listener: socket.socket, pages: Pages) -> None:
    free = asyncio.Semaphore(NUM_CONNECTIONS)
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as answering:
        while True:
            await free.acquire()
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:
                free.release()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            answering.create_task(_answer(connection, pages)).add_done_callback(lambda _: free.release())
            await asyncio.sleep(1 / CONNECTIONS_PER_SECOND)


async def _answer(connection: socket.socket, pages: Pages) -> None:
    """Answer one request; a client that is gone or too slow gets nothing."""
    with closing(connection), suppress(OSError, TimeoutError):
        connection.setblocking(False)
        async with asyncio.timeout(ANSWER_SECONDS):
            page = await _page_for(await _first_line(connection), pages)
            head = (
                f"HTTP/1.1 {page.status} {HTTPStatus(page.status).phrase}\r\n"
                "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                f"Content-Length: {len(page.text)}\r\nConnection: close\r\n\r\n"
            )
            await asyncio.get_running_loop().sock_sendall(connection, head.encode() + page.text)


async def _first_line(connection: socket.socket) -> list[str]:
    """The words of the first line of a request, all of which is read; none if it ends early or is too long."""
    request = b""
    while b"\r\n\r\n" not in request:
        piece = await asyncio.get_running_loop().sock_recv(connection, MAX_REQUEST_BYTES)
        request += piece
        if not piece or len(request) > MAX_REQUEST_BYTES:
            return []
    return request.split(b"\r\n", 1)[0].decode("latin-1").split(" ")


async def _page_for(first_line: list[str], pages: Pages) -> Page:
    match first_line:
        case ["GET", target, _]:
            page = pages.get(target.split("?")[0])
            return await _made(page) if page else Page(404, b"not found\n")
        case [_, _, _]:
            return Page(405, b"only GET is served\n")
        case _:
            return Page(400, b"not a request\n")


async def _made(page: Callable[[], Awaitable[Page]]) -> Page:
    try:
        return await page()
    except Exception:
        logger.exception("a page of the operator cannot be made")  # the others are served on
        return Page(500, b"see the operator's log\n")
