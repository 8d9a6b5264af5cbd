"""Requests to one API server over the official client's transport.

The official package brings configuration, TLS, credentials and the connection pool; its models are left out, since they
cost three times as much as the request itself. Every request has a deadline and every failure is an `ApiError`. Writes are
never retried here: the caller knows whether another try is right.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration

from ddpjob_operator.api.resource import Body
from ddpjob_operator.transport.decoding import decoded
from ddpjob_operator.transport.errors import NotSentError, UnavailableError, error_of
from ddpjob_operator.transport.resources import Resource

JSON = "application/json"

REQUEST_SECONDS = 30.0
CONNECT_SECONDS = 5.0
#: Pauses before a read is sent again that the server answered with 5xx. A reconcile needs several reads: where a third of
#: all requests fails, ten reconciles in a row would, each after twice the delay (found by the faults tests).
READ_PAUSES_SECONDS = (0.1, 0.3)

_METHODS = {"create": "POST", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}

Params = Mapping[str, str | int | bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, as it is sent and as errors and metrics name it."""

    verb: str
    """The Kubernetes verb, which metrics and errors name and the method follows from."""
    resource: Resource
    path: str
    params: Params = field(default_factory=dict)
    body: Body | None = None
    content_type: str = JSON
    accept: str = JSON
    limits: aiohttp.ClientTimeout = field(default_factory=lambda: limits(REQUEST_SECONDS))

    @property
    def method(self) -> str:
        """The HTTP method."""
        return _METHODS.get(self.verb, "GET")

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


def limits(total_seconds: float) -> aiohttp.ClientTimeout:
    """The time limits of a request that ends within this time."""
    return aiohttp.ClientTimeout(total=total_seconds, sock_connect=CONNECT_SECONDS)


class Connection:
    """The connections of one client to its server."""

    def __init__(
        self,
        configuration: Configuration,
        may_write: Callable[[], bool],
        on_response: Callable[[str, str, str], None],
        user_agent: str,
    ) -> None:
        """See `Client`."""
        self._api = ApiClient(configuration)
        self._server = configuration.host
        self._may_write = may_write
        self._on_response = on_response
        self._user_agent = user_agent

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()  # type: ignore[no-untyped-call]  # the package is typed only in part

    async def json(self, request: Request) -> dict[str, Any]:
        """The answer as JSON; a read that the server answers with 5xx is sent again."""
        pauses = iter(READ_PAUSES_SECONDS if request.method == "GET" else ())
        while True:
            try:
                content = await self.read(request)
                break
            except UnavailableError as error:
                pause = next(pauses, None)
                if error.status < 500 or pause is None:
                    raise
            await asyncio.sleep(pause)
        try:
            answer: dict[str, Any] = decoded(request.resource, content)
        except ValueError as error:
            raise UnavailableError(str(request), f"the answer is not JSON: {content[:200]!r}") from error
        return answer

    async def read(self, request: Request) -> bytes:
        """The whole answer."""
        async with self.response(request) as response:
            return await response.read()

    @asynccontextmanager
    async def response(self, request: Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to a request, once it is known to be good; released at the end, whatever happens."""
        if request.method != "GET" and not self._may_write():
            raise NotSentError(str(request), "not sent, since this process does not hold the Lease")
        url = f"{self._server}{request.path}{_query(request.params)}"
        headers = {"User-Agent": self._user_agent, "Accept": request.accept, "Content-Type": request.content_type}
        verb, plural = request.verb, request.resource.plural
        response: aiohttp.ClientResponse | None = None
        try:
            answer = await self._api.call_api(
                request.method, url, headers, body=request.body, _request_timeout=request.limits
            )
            response = answer.response
            self._on_response(verb, plural, str(response.status))
            if response.status >= 400:
                content = await response.read()
                raise error_of(str(request), response.status, content, response.headers.get("Retry-After"))
            yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if response is None:
                self._on_response(verb, plural, "none")
            raise UnavailableError(str(request), reason_of(error)) from error
        finally:
            if response is not None:
                response.close()

    @asynccontextmanager
    async def web_socket(
        self, request: Request, query: str, protocol: str, timeout_seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The messages of a web socket of this protocol, which must be read to their end within this time."""
        rest = self._api.rest_client
        rest.pool_manager = rest.pool_manager or rest._create_pool_manager()  # as its own requests do
        proxy = {"proxy": rest.proxy, "proxy_headers": rest.proxy_headers} if rest.proxy else {}
        try:
            async with (
                asyncio.timeout(timeout_seconds),
                rest.pool_manager.ws_connect(
                    f"{self._server}{request.path}?{query}",
                    protocols=(protocol,),
                    headers={"User-Agent": self._user_agent},
                    **proxy,
                ) as connection,
            ):
                yield (message.data async for message in connection if isinstance(message.data, bytes))
        except aiohttp.WSServerHandshakeError as error:  # it has no body
            reason = 'the user cannot create resource "pods/exec"' if error.status == 403 else error.message
            raise error_of(str(request), error.status, reason.encode(), None) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = f"no end after {timeout_seconds:g} s" if isinstance(error, TimeoutError) else str(error)
            raise UnavailableError(str(request), reason or type(error).__name__) from error


async def lines_of(response: aiohttp.ClientResponse, limit: int | None = None) -> AsyncIterator[bytes]:
    """Lines of any length, or those above `limit` in parts; aiohttp's own reader bounds them.

    A rest without a line feed at the end of the stream counts as a line only where there is a limit: half an event of a
    watch is of no use, the unfinished line of a log is. Each byte is copied a bounded number of times: an event may have
    a megabyte and come in pieces of some kilobytes.
    """
    parts: list[bytes] = []
    length = 0
    async for chunk in response.content.iter_any():
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield b"".join((*parts, end))
            parts, length = [], 0
        parts.append(rest)
        length += len(rest)
        if limit is not None and length >= limit:
            yield b"".join(parts)
            parts, length = [], 0
    if limit is not None and length:
        yield b"".join(parts)


def reason_of(error: Exception) -> str:
    """Why no answer came; aiohttp writes Python's own lists of errors around the reason of the operating system."""
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        cause = error.os_error  # a negative number is that of a name that cannot be resolved
        why = os.strerror(cause.errno) if cause.errno and cause.errno > 0 else cause.strerror or str(cause)
        return f"no connection to {error.host}:{error.port} ({why})"
    return str(error) or type(error).__name__


def _query(params: Params) -> str:
    given = {name: _text(value) for name, value in params.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
