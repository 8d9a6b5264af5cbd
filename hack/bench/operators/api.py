"""A bare asyncio client of the API server: what no operator can be faster than, and light enough not to disturb one."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp

from ddpjob_operator.transport.access import load_access

#: No request of a measurement may take longer.
REQUEST_SECONDS = 60.0
#: Requests in flight; more only queue up in the API server.
MAX_PARALLEL = 32

Body = Mapping[str, Any]


class ApiError(Exception):
    """A request was refused; the text holds the server's message."""


class Api:
    """Requests to the API server of one kubeconfig."""

    def __init__(self, server: str, session: aiohttp.ClientSession) -> None:
        self._server = server
        self._session = session
        self._slots = asyncio.Semaphore(MAX_PARALLEL)

    @classmethod
    async def of(cls, kubeconfig: Path) -> Self:
        """Log in as this kubeconfig says."""
        os.environ["KUBECONFIG"] = str(kubeconfig)
        access = await load_access()
        return cls(access.server, access.session())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def send(
        self, method: str, path: str, body: Body | None = None, *, content_type: str = "application/json"
    ) -> Any:
        """The answer's JSON. Raises ApiError for any status of 400 or more."""
        data = None if body is None else json.dumps(body)
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        headers = {"Content-Type": content_type}
        async with (
            self._slots,
            self._session.request(
                method, f"{self._server}{path}", data=data, headers=headers, timeout=timeout
            ) as answer,
        ):
            content = await answer.read()
            if answer.status >= 400:
                raise ApiError(f"{method} {path}: {answer.status} {content[:500].decode(errors='replace')}")
            return json.loads(content)

    async def text(self, path: str) -> str:
        """A page that is not JSON."""
        async with self._session.get(f"{self._server}{path}") as answer:
            answer.raise_for_status()
            return await answer.text()

    async def merge_patch(self, path: str, patch: Body) -> Any:
        """Change what `patch` names."""
        return await self.send("PATCH", path, patch, content_type="application/merge-patch+json")

    async def watch(self, path: str, selector: str, version: str) -> AsyncIterator[list[dict[str, Any]]]:
        """Events after `version`, in the lots in which they arrive. Ends with the connection."""
        timeout = aiohttp.ClientTimeout(sock_read=120)
        params = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "1800"}
        if selector:
            params["labelSelector"] = selector
        async with self._session.get(f"{self._server}{path}", params=params, timeout=timeout) as answer:
            answer.raise_for_status()
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                if lines:
                    yield [json.loads(line) for line in lines]
