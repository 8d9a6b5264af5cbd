"""Typed verbs of the Kubernetes API, with plain dictionaries as bodies. How requests are sent is in `connection.py`."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
from kubernetes.aio.client import Configuration

from ddpjob_operator.api.resource import Body
from ddpjob_operator.transport.connection import CONNECT_SECONDS, Connection, Params, Request, limits, lines_of
from ddpjob_operator.transport.decoding import decoded
from ddpjob_operator.transport.errors import NotFoundError, RejectedError, ThrottledError, UnavailableError, error_of
from ddpjob_operator.transport.execution import PROTOCOL, Execution, collect, query
from ddpjob_operator.transport.resources import PODS, Resource

logger = logging.getLogger(__name__)

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

#: A pod or a DDPJob of a megabyte takes up to 12 MiB of memory as objects (measured), and a page is decoded as a whole.
PAGE_SIZE = 50
#: The API server refuses a page for a moment while it is busy. This often a page is requested again, when the server says, before the
#: list fails: a list of many pages that began again each time would never end.
PAGE_TRIES = 5
#: The API server deletes one object after the other and ends its own request after a minute; what is deleted by then is gone.
DELETE_COLLECTION_SECONDS = 70.0
#: Of the bookmark after the last object that existed when a watch list began.
_LISTED = "k8s.io/initial-events-end"
#: The server ends a watch after this long; the client continues from the last version.
WATCH_SECONDS = 300
#: The API server sends a bookmark about once a minute, so a stream silent for longer than this is dead.
WATCH_SILENCE_SECONDS = 100.0
#: A program may print any amount of text without a line feed.
MAX_LOG_LINE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of a watch: ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a list. The last page of a list has the version of the state that all pages together show."""

    items: list[Body]
    resource_version: str = ""
    gone: frozenset[str] = frozenset()
    """The uids of objects of this page that were deleted while the list was sent."""


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
        self._connection = Connection(configuration, may_write, on_response, user_agent)
        self._streams_lists = True
        self._broken_lists: set[tuple[Resource, str | None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Body:
        """One object, as it is now."""
        return await self._connection.json(Request(verb="get", resource=resource, path=resource.path(namespace, name)))

    async def create(self, resource: Resource, namespace: str | None, body: Body, *, dry_run: bool = False) -> Body:
        """Create an object; the server refuses fields that it does not know. Returns it as created."""
        path: str = resource.path(namespace)
        params: Params = {"fieldValidation": "Strict", "dryRun": "All" if dry_run else None}
        return await self._connection.json(
            Request(verb="create", resource=resource, path=path, params=params, body=body)
        )

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
        return await self._connection.json(
            Request(verb="patch", resource=resource, path=path, params=params, body=body, content_type=APPLY_PATCH)
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
        await self._connection.json(Request(verb="delete", resource=resource, path=path, body=options))

    async def delete_collection(self, resource: Resource, namespace: str, labels: str) -> None:
        """Delete all objects of these labels in a namespace, each with its own grace."""
        assert labels, "without a selector it would be everybody's objects"
        path, params = resource.path(namespace), {"labelSelector": labels}
        seconds = limits(DELETE_COLLECTION_SECONDS)
        await self._connection.read(
            Request(verb="deletecollection", resource=resource, path=path, params=params, limits=seconds)
        )

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, patch: Body, *, subresource: str | None = None
    ) -> Body:
        """Change the fields that `patch` names. Its metadata may carry uid and resourceVersion as preconditions."""
        path = resource.path(namespace, name, subresource)
        return await self._connection.json(
            Request(verb="patch", resource=resource, path=path, body=patch, content_type=MERGE_PATCH)
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
        body = await self._connection.read(
            Request(
                verb="log",
                resource=PODS,
                path=PODS.path(namespace, pod, "log"),
                params={"container": container, "tailLines": tail_lines, "limitBytes": limit_bytes},
                accept="*/*",
                limits=limits(timeout_seconds),
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
        request = Request(
            verb="log",
            resource=PODS,
            path=PODS.path(namespace, pod, "log"),
            params=params,
            accept="*/*",
            limits=aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS),
        )
        async with self._connection.response(request) as response:
            async for line in lines_of(response, limit=MAX_LOG_LINE_BYTES):
                yield line.decode(errors="replace")

    async def execute(
        self, namespace: str, pod: str, command: Sequence[str], *, container: str, timeout_seconds: float
    ) -> Execution:
        """Run a command in a container, without a shell and without input, and wait for its end.

        RejectedError: the server does not allow it. UnavailableError: it did not end in time.
        """
        path = PODS.path(namespace, pod, "exec")
        request = Request(verb="create", resource=PODS, path=path)
        parameters = query(container, command)
        async with self._connection.web_socket(request, parameters, PROTOCOL, timeout_seconds) as messages:
            return await collect(messages)

    async def serves(self, resource: Resource) -> bool:
        """Whether the API server knows this kind of objects."""
        known = await self._connection.json(Request(verb="get", resource=resource, path=resource.prefix))
        return any(entry.get("name") == resource.plural for entry in known.get("resources", ()))

    async def server_version(self) -> str:
        """The server's version, such as v1.36.3."""
        root = Resource(prefix="/version", plural="")
        known = await self._connection.json(Request(verb="get", resource=root, path=root.prefix))
        return str(known.get("gitVersion"))

    async def group_versions(self, group: str) -> list[str]:
        """The served versions of an API group; empty if the server does not know it."""
        root = Resource(prefix=f"/apis/{group}", plural="")
        try:
            known = await self._connection.json(Request(verb="get", resource=root, path=root.prefix))
        except NotFoundError:
            return []
        return [str(entry.get("version")) for entry in known.get("versions", ())]

    async def everything(self, resource: Resource, namespace: str | None, labels: str = "") -> AsyncIterator[Page]:
        """List all objects of a kind that the caller may also watch, from the server's latest state, with little memory.

        As a watch list, one object at a time, where the server has it (feature gate WatchList), and in pages elsewhere. After
        a watch list that broke, the next list of the same objects comes in pages: a connection may end each stream early.
        """
        objects = (resource, namespace)
        if self._streams_lists and objects not in self._broken_lists:
            self._broken_lists.add(objects)  # until it is complete
            try:
                async with aclosing(self._watch_list(resource, namespace, labels)) as pages:
                    async for page in pages:
                        yield page
            except RejectedError as error:
                if "sendInitialEvents" not in error.message:
                    raise
                self._streams_lists = False
                logger.info("the API server has no watch lists, so lists come in pages: %s", error.message)
            else:
                self._broken_lists.discard(objects)
                return
        self._broken_lists.discard(objects)
        async for page in self.pages(resource, namespace, labels):
            yield page

    async def _watch_list(self, resource: Resource, namespace: str | None, labels: str) -> AsyncGenerator[Page, None]:
        options: Params = {"sendInitialEvents": True, "resourceVersionMatch": "NotOlderThan"}
        async with aclosing(self._events(resource, namespace, labels, "", options)) as events:
            async for event in events:
                metadata = event.body["metadata"]
                if event.type != "BOOKMARK":
                    gone = frozenset((metadata["uid"],)) if event.type == "DELETED" else frozenset()
                    yield Page(items=[event.body], gone=gone)
                elif (metadata.get("annotations") or {}).get(_LISTED) == "true":
                    yield Page(items=[], resource_version=metadata["resourceVersion"])
                    return
        raise UnavailableError(f"list {resource.path(namespace)}", "the watch list ended before all objects were sent")

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
            body = await self._page(Request(verb="list", resource=resource, path=path, params=params))
            metadata = body["metadata"]
            yield Page(items=body.get("items") or [], resource_version=metadata["resourceVersion"])
            token = metadata.get("continue")
            if not token:
                return

    async def _page(self, request: Request) -> Body:
        for _ in range(PAGE_TRIES - 1):
            try:
                return await self._connection.json(request)
            except ThrottledError as error:
                await asyncio.sleep(error.retry_after_seconds)
        return await self._connection.json(request)

    async def watch(
        self, resource: Resource, namespace: str | None, labels: str, resource_version: str, *, fields: str = ""
    ) -> AsyncGenerator[Event, None]:
        """What changes after `resource_version`, bookmarks included, until the server ends the stream.

        An empty version starts with an ADDED for each existing object. `fields` selects by fields.
        Raises GoneError for a version that is too old, UnavailableError for a stream that breaks or falls silent.
        """
        async with aclosing(
            self._events(resource, namespace, labels, resource_version, {"fieldSelector": fields or None})
        ) as events:
            async for event in events:
                yield event

    async def _events(
        self, resource: Resource, namespace: str | None, labels: str, resource_version: str, options: Params
    ) -> AsyncGenerator[Event, None]:
        params: Params = {
            "watch": True,
            "labelSelector": labels or None,
            "resourceVersion": resource_version,
            "allowWatchBookmarks": True,
            "timeoutSeconds": WATCH_SECONDS,
            **options,
        }
        limits = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=WATCH_SILENCE_SECONDS)
        path = resource.path(namespace)
        verb = "list" if "sendInitialEvents" in options else "watch"
        request = Request(verb=verb, resource=resource, path=path, params=params, limits=limits)
        async with self._connection.response(request) as response:
            async for line in lines_of(response):
                try:
                    event = decoded(resource, line)
                except ValueError as error:
                    raise UnavailableError(str(request), f"a line is not JSON: {line[:200]!r}") from error
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise error_of(str(request), status.get("code") or 500, json.dumps(status).encode(), None)
                yield Event(type=event["type"], body=event["object"])
