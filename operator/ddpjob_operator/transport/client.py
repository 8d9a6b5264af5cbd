"""Typed verbs over the official client's transport, with plain dictionaries as bodies.

The official package brings configuration, TLS, credentials and the connection pool; its models are left out, since they
cost three times as much as the request itself. Every request has a deadline and every failure is an `ApiError`. Writes are
never retried here: the caller knows whether another try is right.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration

from ddpjob_operator.api.resource import Body
from ddpjob_operator.transport.decoding import decoded
from ddpjob_operator.transport.errors import NotFoundError, UnavailableError, error_of
from ddpjob_operator.transport.execution import PROTOCOL, Execution, collect, query
from ddpjob_operator.transport.resources import PODS, Resource

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

REQUEST_SECONDS = 30.0
CONNECT_SECONDS = 5.0
#: Pauses before a read is sent again that the server answered with 5xx. A reconcile needs several reads: where a third of
#: all requests fails, ten reconciles in a row would, each after twice the delay (found by the faults tests).
READ_PAUSES_SECONDS = (0.1, 0.3)
#: The audit lists everything every few minutes; a page of pods is about 8 MB.
PAGE_SIZE = 1000
#: The server ends a watch after this long; the client continues from the last version.
WATCH_SECONDS = 300
#: The API server sends a bookmark about once a minute, so a stream silent for longer than this is dead.
WATCH_SILENCE_SECONDS = 100.0
#: A program may print any amount of text without a line feed.
MAX_LOG_LINE_BYTES = 64 * 1024

_METHODS = {"create": "POST", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}

Params = Mapping[str, str | int | bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of a watch: ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """One request, as it is sent and as errors and metrics name it."""

    verb: str
    """The Kubernetes verb, which metrics and errors name and the method follows from."""
    resource: Resource
    path: str
    params: Params = field(default_factory=dict)
    body: Body | None = None
    content_type: str = JSON
    accept: str = JSON
    limits: aiohttp.ClientTimeout = field(default_factory=lambda: _limits(REQUEST_SECONDS))

    @property
    def method(self) -> str:
        """The HTTP method."""
        return _METHODS.get(self.verb, "GET")

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


def _limits(total_seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=total_seconds, sock_connect=CONNECT_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a list. All pages of one list show the state at `resource_version`."""

    items: list[Body]
    resource_version: str


class Client:
    """Requests to one API server."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        may_write: Callable[[], bool] = lambda: True,
        on_response: Callable[[str, str, str], None] = lambda verb, resource, code: None,  # noqa: ARG005
        user_agent: str = "ddpjob-operator",
    ) -> None:
        """Requires a running event loop.

        Args:
            configuration: Address and credentials of the server.
            may_write: Called right before each request that is not a GET.
            on_response: Called after each request with its verb, resource and HTTP status, which is `none` where no
                answer came.
            user_agent: The name of this client in the server's audit log.
        """
        self._api = ApiClient(configuration)
        self._server = configuration.host
        self._may_write = may_write
        self._on_response = on_response
        self._user_agent = user_agent

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._api.close()  # type: ignore[no-untyped-call]  # the package is typed only in part

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Body:
        """One object, as it is now."""
        return await self._json(_Request(verb="get", resource=resource, path=resource.path(namespace, name)))

    async def create(self, resource: Resource, namespace: str | None, body: Body, *, dry_run: bool = False) -> Body:
        """Create an object; the server refuses fields that it does not know. Returns it as created."""
        path: str = resource.path(namespace)
        params: Params = {"fieldValidation": "Strict", "dryRun": "All" if dry_run else None}
        return await self._json(_Request(verb="create", resource=resource, path=path, params=params, body=body))

    async def apply(
        self, resource: Resource, namespace: str, name: str, body: Body, *, manager: str, dry_run: bool = False
    ) -> Body:
        """Create or change an object by server-side apply, as the field manager `manager`, which takes over its fields."""
        params: Params = {
            "fieldManager": manager,
            "fieldValidation": "Strict",
            "force": True,
            "dryRun": "All" if dry_run else None,
        }
        path = resource.path(namespace, name)
        return await self._json(
            _Request(verb="patch", resource=resource, path=path, params=params, body=body, content_type=APPLY_PATCH)
        )

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str = "",
        grace_seconds: int | None = None,
        propagation: str | None = None,
    ) -> None:
        """Delete this very object, in this version if one is given.

        ConflictError: the name belongs to another object by now, or it is another version.
        """
        preconditions = {"uid": uid} | ({"resourceVersion": resource_version} if resource_version else {})
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if propagation is not None:
            options["propagationPolicy"] = propagation
        path = resource.path(namespace, name)
        await self._json(_Request(verb="delete", resource=resource, path=path, body=options))

    async def delete_collection(self, resource: Resource, namespace: str, labels: str) -> None:
        """Delete all objects of these labels in a namespace, each with its own grace."""
        assert labels, "without a selector it would be everybody's objects"
        path, params = resource.path(namespace), {"labelSelector": labels}
        await self._read(_Request(verb="deletecollection", resource=resource, path=path, params=params))

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, patch: Body, *, subresource: str | None = None
    ) -> Body:
        """Change the fields that `patch` names. Its metadata may carry uid and resourceVersion as preconditions."""
        path = resource.path(namespace, name, subresource)
        return await self._json(
            _Request(verb="patch", resource=resource, path=path, body=patch, content_type=MERGE_PATCH)
        )

    async def pod_log(
        self,
        namespace: str,
        pod: str,
        *,
        container: str,
        tail_lines: int,
        limit_bytes: int,
        timeout_seconds: float,
    ) -> str:
        """The last lines of a container's log.

        `limit_bytes` cuts the end of those lines off, so choose it larger than they can be. The text may be an error of
        the node although the request succeeded.
        """
        body = await self._read(
            _Request(
                verb="log",
                resource=PODS,
                path=PODS.path(namespace, pod, "log"),
                params={"container": container, "tailLines": tail_lines, "limitBytes": limit_bytes},
                accept="*/*",
                limits=_limits(timeout_seconds),
            )
        )
        return body.decode(errors="replace")

    async def pod_log_lines(
        self,
        namespace: str,
        pod: str,
        *,
        container: str,
        follow: bool,
        tail_lines: int | None = None,
        since_seconds: int | None = None,
        since_time: str | None = None,
    ) -> AsyncGenerator[str, None]:
        """The lines of a container's log, each with its time (`timestamps=true`), until the log ends.

        A line longer than MAX_LOG_LINE_BYTES comes in parts. The stream may be silent for any time.
        """
        params: Params = {
            "container": container,
            "follow": follow,
            "timestamps": True,
            "tailLines": tail_lines,
            "sinceSeconds": since_seconds,
            "sinceTime": since_time,
        }
        request = _Request(
            verb="log",
            resource=PODS,
            path=PODS.path(namespace, pod, "log"),
            params=params,
            accept="*/*",
            limits=aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS),
        )
        async with self._response(request) as response:
            async for line in _lines(response, limit=MAX_LOG_LINE_BYTES):
                yield line.decode(errors="replace")

    async def execute(
        self, namespace: str, pod: str, command: Sequence[str], *, container: str, timeout_seconds: float
    ) -> Execution:
        """Run a command in a container, without a shell and without input, and wait for its end.

        RejectedError: the server does not allow it. UnavailableError: it did not end in time.
        """
        path = PODS.path(namespace, pod, "exec")
        request = _Request(verb="create", resource=PODS, path=path)
        rest = self._api.rest_client
        rest.pool_manager = rest.pool_manager or rest._create_pool_manager()  # as its own requests do
        proxy = {"proxy": rest.proxy, "proxy_headers": rest.proxy_headers} if rest.proxy else {}
        try:
            async with (
                asyncio.timeout(timeout_seconds),
                rest.pool_manager.ws_connect(
                    f"{self._server}{path}?{query(container, command)}",
                    protocols=(PROTOCOL,),
                    headers={"User-Agent": self._user_agent},
                    **proxy,
                ) as connection,
            ):
                return await collect(message.data async for message in connection if isinstance(message.data, bytes))
        except aiohttp.WSServerHandshakeError as error:  # it has no body
            reason = 'the user cannot create resource "pods/exec"' if error.status == 403 else error.message
            raise error_of(str(request), error.status, reason.encode(), None) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = f"no end after {timeout_seconds:g} s" if isinstance(error, TimeoutError) else str(error)
            raise UnavailableError(str(request), reason or type(error).__name__) from error

    async def serves(self, resource: Resource) -> bool:
        """Whether the API server knows this kind of objects."""
        known = await self._json(_Request(verb="get", resource=resource, path=resource.prefix))
        return any(entry.get("name") == resource.plural for entry in known.get("resources", ()))

    async def server_version(self) -> str:
        """The server's version, such as v1.36.3."""
        root = Resource(prefix="/version", plural="")
        known = await self._json(_Request(verb="get", resource=root, path=root.prefix))
        return str(known.get("gitVersion"))

    async def group_versions(self, group: str) -> list[str]:
        """The served versions of an API group; empty if the server does not know it."""
        root = Resource(prefix=f"/apis/{group}", plural="")
        try:
            known = await self._json(_Request(verb="get", resource=root, path=root.prefix))
        except NotFoundError:
            return []
        return [str(entry.get("version")) for entry in known.get("versions", ())]

    async def pages(
        self, resource: Resource, namespace: str | None, labels: str = "", *, fields: str = ""
    ) -> AsyncIterator[Page]:
        """List in pages, from the server's latest state. GoneError: the list took too long, start again."""
        token: str | None = None
        while True:
            params: Params = {
                "labelSelector": labels or None,
                "fieldSelector": fields or None,
                "limit": PAGE_SIZE,
                "continue": token,
            }
            path = resource.path(namespace)
            body = await self._json(_Request(verb="list", resource=resource, path=path, params=params))
            metadata = body["metadata"]
            yield Page(items=body.get("items") or [], resource_version=metadata["resourceVersion"])
            token = metadata.get("continue")
            if not token:
                return

    async def watch(
        self, resource: Resource, namespace: str | None, labels: str, resource_version: str, *, fields: str = ""
    ) -> AsyncGenerator[Event, None]:
        """What changes after `resource_version`, bookmarks included, until the server ends the stream.

        An empty version starts with an ADDED for each existing object. `fields` selects by fields.
        Raises GoneError for a version that is too old, UnavailableError for a stream that breaks or falls silent.
        """
        params: Params = {
            "watch": True,
            "labelSelector": labels or None,
            "fieldSelector": fields or None,
            "resourceVersion": resource_version,
            "allowWatchBookmarks": True,
            "timeoutSeconds": WATCH_SECONDS,
        }
        limits = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=WATCH_SILENCE_SECONDS)
        path = resource.path(namespace)
        request = _Request(verb="watch", resource=resource, path=path, params=params, limits=limits)
        async with self._response(request) as response:
            async for line in _lines(response):
                try:
                    event = decoded(resource, line)
                except ValueError as error:
                    raise UnavailableError(str(request), f"a line is not JSON: {line[:200]!r}") from error
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise error_of(str(request), status.get("code") or 500, json.dumps(status).encode(), None)
                yield Event(type=event["type"], body=event["object"])

    async def _json(self, request: _Request) -> dict[str, Any]:
        """The answer as JSON; a read that the server answers with 5xx is sent again."""
        pauses = iter(READ_PAUSES_SECONDS if request.method == "GET" else ())
        while True:
            try:
                content = await self._read(request)
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

    async def _read(self, request: _Request) -> bytes:
        async with self._response(request) as response:
            return await response.read()

    @asynccontextmanager
    async def _response(self, request: _Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to a request, once it is known to be good; released at the end, whatever happens."""
        if request.method != "GET" and not self._may_write():
            raise UnavailableError(str(request), "not sent, since this process does not hold the Lease")
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
            raise UnavailableError(str(request), str(error) or type(error).__name__) from error
        finally:
            if response is not None:
                response.close()


async def _lines(response: aiohttp.ClientResponse, limit: int | None = None) -> AsyncIterator[bytes]:
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


def _query(params: Params) -> str:
    given = {name: _text(value) for name, value in params.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
