"""Reading the API without a process for each call, and watching it with the time at which each change arrives.

kubectl costs a tenth of a second of CPU a call, which on two cores is what is to be measured.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException
from typing import Any

import testbed

#: Longest silence on a watch before it is opened again; the API server itself ends one after `timeoutSeconds`.
SILENCE_SECONDS = 300
RETRY_SECONDS = 0.1

Body = dict[str, Any]


class Api:
    """The API server of a cluster of the test bed, as its administrator."""

    def __init__(self, control_plane: testbed.ControlPlane) -> None:
        keys = control_plane.keys
        self._server = control_plane.server
        self._context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        self._context.load_cert_chain(keys / "admin.crt", keys / "admin.key")

    def get(self, path: str) -> Body | None:
        """The object or list at this path; None if there is none.

        Raises:
            OSError: the server does not answer, or refuses.
        """
        try:
            with self._open(path, timeout_seconds=10) as answer:
                body: Body = json.load(answer)
                return body
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def lines(self, path: str) -> Iterator[Body]:
        """The events of a watch until it ends."""
        with self._open(path, timeout_seconds=SILENCE_SECONDS) as answer:
            for line in answer:
                yield json.loads(line)

    def _open(self, path: str, timeout_seconds: float) -> Any:
        # The server is one of our own, and its URL is not given from outside.
        return urllib.request.urlopen(self._server + path, timeout=timeout_seconds, context=self._context)  # noqa: S310


class Watch(threading.Thread):
    """Calls `changed(body, deleted, arrival)` for every change of the objects at a path; arrival is in seconds since the epoch.

    It continues after restarts of the API server; deletions that happened meanwhile are then reported.
    """

    def __init__(self, api: Api, path: str, changed: Callable[[Body, bool, float], None]) -> None:
        super().__init__(name=f"watch {path}", daemon=True)
        self._api = api
        self._path = path
        self._changed = changed
        self._known: dict[str, Body] = {}
        self._over = threading.Event()

    def run(self) -> None:
        """Watch until `stop`."""
        while not self._over.is_set():
            try:
                self._follow(self._relist())
            except (OSError, HTTPException, ValueError):  # it is down, or went down in the middle of a line
                self._over.wait(RETRY_SECONDS)

    def stop(self) -> None:
        """Report no further change; the thread ends with the process."""
        self._over.set()

    def _relist(self) -> str:
        listed = self._api.get(self._path) or {"items": [], "metadata": {"resourceVersion": "0"}}
        now = time.time()
        there = {body["metadata"]["uid"]: body for body in listed["items"]}
        for uid in set(self._known) - set(there):
            self._changed(self._known.pop(uid), True, now)
        for uid, body in there.items():
            self._known[uid] = body
            self._changed(body, False, now)
        return str(listed["metadata"]["resourceVersion"])

    def _follow(self, version: str) -> None:
        for event in self._api.lines(f"{self._path}?watch=1&resourceVersion={version}&timeoutSeconds=3600"):
            if self._over.is_set() or event["type"] == "ERROR":
                return
            body, deleted = event["object"], event["type"] == "DELETED"
            if deleted:
                self._known.pop(body["metadata"]["uid"], None)
            else:
                self._known[body["metadata"]["uid"]] = body
            self._changed(body, deleted, time.time())
