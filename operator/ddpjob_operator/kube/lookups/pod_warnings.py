"""What the kubelet reports while a pod does not start: a volume that cannot be mounted shows in Events only.

One pod of a job is looked up at a time, and only while its gang waits for it. The API server reads all Events of a namespace
for each list, whatever it selects, so all jobs of a namespace share one list, which comes less often while nothing changes.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from ddpjob_operator.core.backoff import doubled
from ddpjob_operator.core.model import ReadWarning
from ddpjob_operator.kube.keys import Key
from ddpjob_operator.kube.lookups.keyed_tasks import KeyedTasks
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ApiError
from ddpjob_operator.transport.resources import EVENTS

logger = logging.getLogger(__name__)

#: Least time between two lists of a namespace, and the most that it grows to.
FIRST_PAUSE_SECONDS = 10.0
LAST_PAUSE_SECONDS = 60.0
MAX_AT_ONCE = 4
#: The pod's own status reports other reasons, with clearer messages.
REASONS = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox"})


class PodWarnings:
    """The latest warning about the pod that each job looks up."""

    def __init__(self, client: Client, changed: Callable[[Key], None]) -> None:
        """`changed` is called with the key of a job when there is a new warning."""
        self._client = client
        self._changed = changed
        self._wanted: dict[Key, str] = {}
        self._found: dict[Key, str] = {}
        self._readers = KeyedTasks[str]()
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)

    def of(self, key: Key) -> Mapping[str, str]:
        """The warning, by uid of the pod."""
        return {self._wanted[key]: self._found[key]} if key in self._found else {}

    def want(self, key: Key, lookup: ReadWarning | None) -> None:
        """Look up the warnings of this pod for the job, or of none."""
        uid = lookup.uid if lookup else None
        if self._wanted.get(key) != uid:
            self._wanted.pop(key, None)
            self._found.pop(key, None)
        if uid is not None:
            self._wanted[key] = uid
            self._readers.start(key[0], lambda: self._follow(key[0]), f"warnings in {key[0]}")

    async def stop(self) -> None:
        """Stop all reads."""
        await self._readers.stop()

    async def _follow(self, namespace: str) -> None:
        """List the warnings of one namespace until no job of it needs them."""
        read: frozenset[str] = frozenset()
        num_unchanged, due = 0, 0.0
        while pods := self._wanted_in(namespace):
            if not pods.keys() <= read or time.monotonic() >= due:
                is_news = await self._read(namespace, pods)
                num_unchanged = 0 if is_news or not pods.keys() <= read else num_unchanged + 1
                read = frozenset(pods)
                due = time.monotonic() + doubled(FIRST_PAUSE_SECONDS, num_unchanged, LAST_PAUSE_SECONDS)
            await asyncio.sleep(FIRST_PAUSE_SECONDS)

    def _wanted_in(self, namespace: str) -> dict[str, Key]:
        return {uid: key for key, uid in self._wanted.items() if key[0] == namespace}

    async def _read(self, namespace: str, pods: Mapping[str, Key]) -> bool:
        """Store the latest warning of each pod. Returns whether any of them is new."""
        try:
            async with self._slots:
                latest = await self._latest(namespace, pods)
        except ApiError as error:
            logger.info("the Events of pods in %s cannot be read: %s", namespace, error)
            return False
        except Exception:  # an unexpected Event must not end the reading
            logger.exception("the Events of pods in %s cannot be read", namespace)
            return False
        news = {pods[uid]: text for uid, text in latest.items() if self._found.get(pods[uid]) != text}
        for key, text in news.items():
            if self._wanted.get(key) in latest:  # Otherwise it looks up another pod by now.
                self._found[key] = text
                self._changed(key)
        return bool(news)

    async def _latest(self, namespace: str, pods: Mapping[str, Key]) -> dict[str, str]:
        """The message of the latest warning by uid of the pod."""
        objects = f"involvedObject.uid={next(iter(pods))}" if len(pods) == 1 else "involvedObject.kind=Pod"
        found: dict[str, tuple[int, str]] = {}
        async for page in self._client.pages(EVENTS, namespace, fields=f"{objects},type=Warning"):
            for event in page.items:
                uid = event["involvedObject"].get("uid")
                if uid in pods and event.get("reason") in REASONS and event.get("message"):
                    warning = (int(event["metadata"]["resourceVersion"]), str(event["message"]))
                    found[uid] = max(found.get(uid, warning), warning)
        return {uid: message for uid, (_, message) in found.items()}
