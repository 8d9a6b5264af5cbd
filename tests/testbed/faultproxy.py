"""A proxy in front of a real API server that makes what clients must survive: refusals, cuts, lost answers, dead watches.

Clients reach it by a kubeconfig of its own; what they ask is asked of the API server as an administrator. Everything that no
rule strikes passes unchanged, so a client cannot tell the proxy from the server, but for a watch, which is never compressed.
Not for what upgrades its connection (exec, attach, port-forward) and not for followed logs: an answer other than a watch's
is passed on when it is complete.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Self

import aiohttp
import yarl
from aiohttp import web

from testbed import kubeconfig, ports
from testbed.controlplane import ControlPlane
from testbed.faults import (
    Answer,
    CutStream,
    Fault,
    Hold,
    LoseAnswer,
    LoseRequest,
    Request,
    Rule,
    Rules,
    Silence,
    StreamError,
)

#: Headers that belong to one connection, or that the server here sets itself.
_OF_ONE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "upgrade", "date"}

#: Longest wait for the thread of the proxy.
THREAD_SECONDS = 120
#: Between two looks at whether a request that is held may pass.
HOLD_POLL_SECONDS = 0.02

_REASONS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}


class FaultProxy:
    """A context manager that listens on loopback, in a thread of its own.

    Args:
        control_plane: where its API server is, which may be killed and started again meanwhile.
        seed: of every probability. Two runs differ still, since clients do not ask in the same order twice.

    Attributes:
        kubeconfig: for the clients that are to meet faults.
    """

    def __init__(self, control_plane: ControlPlane, *, seed: int = 0) -> None:
        (self._port,) = ports.free(1)
        self._control_plane = control_plane
        self._rules = Rules(seed)
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="fault proxy", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._session: aiohttp.ClientSession

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig that leads here."""
        return self._control_plane.folder / f"faultproxy-{self._port}.kubeconfig"

    def __enter__(self) -> Self:
        address = f"https://127.0.0.1:{self._port}"
        kubeconfig.write(self.kubeconfig, server=address, keys=self._control_plane.keys, user="admin")
        self._thread.start()
        assert self._ready.wait(THREAD_SECONDS), f"the fault proxy did not listen within {THREAD_SECONDS} s"
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(THREAD_SECONDS)
        assert not self._thread.is_alive(), f"the fault proxy did not end within {THREAD_SECONDS} s"

    def inject(
        self,
        fault: Fault,
        *,
        verbs: tuple[str, ...] = (),
        target: str = "",
        probability: float = 1.0,
        skip: int = 0,
        times: int | None = None,
    ) -> Rule:
        """From now on make this fault happen to what matches; see `Rule`. Gives the rule, which counts."""
        rule = Rule(fault=fault, verbs=verbs, target=target, probability=probability, skip=skip, times=times)
        self._rules.add(rule)
        return rule

    def clear(self) -> None:
        """No fault from now on."""
        self._rules.clear()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 the thread that started this one raises it
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        keys = self._control_plane.keys
        inside = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        inside.load_cert_chain(keys / "server.crt", keys / "server.key")
        outside = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        outside.load_cert_chain(keys / "admin.crt", keys / "admin.key")
        # As they come: neither followed nor unpacked, and never given up here.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=outside),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        )
        # A watch whose client has gone must not stay open at the API server.
        runner = web.ServerRunner(web.Server(self._handle, handler_cancellation=True), shutdown_timeout=0.1)
        async with self._session:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self._port, ssl_context=inside).start()
            self._ready.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _handle(self, incoming: web.BaseRequest) -> web.StreamResponse:
        request = Request.of(incoming.method, incoming.raw_path)
        body = await incoming.read()
        if request.verb == "watch":
            return await self._answer(incoming, request, body)
        # What a client has sent is on its way, though the client be gone by then.
        return await asyncio.shield(self._answer(incoming, request, body))

    async def _answer(self, incoming: web.BaseRequest, request: Request, body: bytes) -> web.StreamResponse:
        await asyncio.sleep(self._rules.delay_seconds(request))
        try:
            match self._rules.fault_of(request):
                case Answer() as answer:
                    return _refusal(answer)
                case Hold(released):
                    while not released.is_set():  # noqa: ASYNC110 - threads set it
                        await asyncio.sleep(HOLD_POLL_SECONDS)
                case LoseRequest(then):
                    return _cut(incoming, then)
                case LoseAnswer(then):
                    await self._ask(incoming, request, body)
                    return _cut(incoming, then)
            if request.verb == "watch":
                return await self._watch(incoming, request)
            return await self._ask(incoming, request, body)
        except aiohttp.ClientError:  # The API server is not there, or went away.
            return _cut(incoming)

    async def _ask(self, incoming: web.BaseRequest, request: Request, body: bytes) -> web.Response:
        async with self._upstream(incoming, request, body) as answer:
            content = b"" if request.verb == "watch" else await answer.read()
            return web.Response(status=answer.status, headers=_passed_on(answer.headers), body=content)

    async def _watch(self, incoming: web.BaseRequest, request: Request) -> web.StreamResponse:
        async with self._upstream(incoming, request, b"") as answer:
            stream = web.StreamResponse(status=answer.status, headers=_passed_on(answer.headers))
            await stream.prepare(incoming)
            async for line in _later(_lines(answer), lambda: self._rules.delay_seconds(request)):
                match self._rules.fault_of_event(request):
                    case CutStream(mid_line):
                        await stream.write(line[: len(line) // 2] if mid_line else b"")
                        return _cut(incoming)
                    case Silence():
                        await asyncio.Event().wait()  # Until the client gives up.
                    case StreamError(status):
                        event = {"type": "ERROR", "object": _status(status)}
                        await stream.write(json.dumps(event).encode() + b"\n")
                        return stream
                await stream.write(line)
            return stream

    def _upstream(
        self, incoming: web.BaseRequest, request: Request, body: bytes
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        url = yarl.URL(self._control_plane.server + incoming.raw_path, encoded=True)
        headers = _passed_on(incoming.headers)
        if request.verb == "watch":
            # Kubernetes 1.37 compresses the events of a watch list for a client that accepts it. Here they are lines.
            headers = {name: value for name, value in headers.items() if name.lower() != "accept-encoding"}
        return self._session.request(incoming.method, url, headers=headers, data=body or None, allow_redirects=False)


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Lines of any length, with their ends."""
    rest = b""
    async for chunk in answer.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


async def _later(lines: AsyncIterator[bytes], delay_seconds: Callable[[], float]) -> AsyncIterator[bytes]:
    """The same, each so much later than it came, or when the one before it is due."""
    loop = asyncio.get_running_loop()
    due: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue()

    async def read() -> None:
        try:
            async for line in lines:
                due.put_nowait((loop.time() + delay_seconds(), line))
        finally:
            due.put_nowait(None)

    reader = asyncio.create_task(read())
    try:
        while (entry := await due.get()) is not None:
            at, line = entry
            await asyncio.sleep(at - loop.time())
            yield line
        await reader  # Which may have failed.
    finally:
        reader.cancel()


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _OF_ONE_CONNECTION}


def _refusal(answer: Answer) -> web.Response:
    headers = {} if answer.retry_after_seconds is None else {"Retry-After": str(answer.retry_after_seconds)}
    return web.json_response(_status(answer.status), status=answer.status, headers=headers)


def _status(code: int) -> dict[str, object]:
    """The API server's way to say no."""
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "message": f"injected by the fault proxy: {code}",
        "reason": _REASONS.get(code, "Unknown"),
        "code": code,
    }


def _cut(incoming: web.BaseRequest, then: Callable[[], None] | None = None) -> web.Response:
    """End the connection once what was written is out; the answer that is given then goes nowhere."""
    if then is not None:
        then()
    if incoming.transport is not None:
        incoming.transport.close()
    return web.Response()
