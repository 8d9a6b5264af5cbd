"""What Events say of pods that do not run, and their status does not: a volume that cannot be mounted, a node that is on its way.

A job has one subject of each kind, and only while its gang waits. The API server reads all Events of a namespace for each
list, whatever it selects, so all jobs of a namespace share one list, which comes less often while nothing changes.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ddpjob_operator.core.backoff import doubled
from ddpjob_operator.core.job_names import job_of_pod
from ddpjob_operator.core.model import Body, ScaleUp
from ddpjob_operator.core.times import epoch_seconds
from ddpjob_operator.core.untrusted import printable
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
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLookup(Generic[V]):
    """What is read of Events. Each job looks up one subject at a time, a text by which its Events are found."""

    what: str
    selectors: Callable[[Collection[str]], Sequence[str]]
    """The field selectors whose Events together are about these subjects."""
    subject_of: Callable[[Body], str]
    """The subject of an Event; empty if it is of no interest."""
    answer: Callable[[Sequence[Body]], V]
    """The answer, given all Events about a subject; there is at least one."""


class PodEvents(Generic[V]):
    """The latest answers to one lookup."""

    def __init__(self, client: Client, changed: Callable[[Key], None], lookup: EventLookup[V]) -> None:
        """`changed` is called with the key of a job when there is a new answer."""
        self._client = client
        self._changed = changed
        self._lookup = lookup
        self._wanted: dict[Key, str] = {}
        self._found: dict[Key, V] = {}
        self._readers = KeyedTasks[str]()
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)

    def of(self, key: Key) -> Mapping[str, V]:
        """The answer, by subject."""
        return {self._wanted[key]: self._found[key]} if key in self._found else {}

    def want(self, key: Key, subject: str | None) -> None:
        """Look up this subject for the job, or none."""
        if self._wanted.get(key) != subject:
            self._wanted.pop(key, None)
            self._found.pop(key, None)
        if subject is not None:
            self._wanted[key] = subject
            self._readers.start(key[0], lambda: self._follow(key[0]), f"{self._lookup.what} in {key[0]}")

    async def stop(self) -> None:
        """Stop all reads."""
        await self._readers.stop()

    async def _follow(self, namespace: str) -> None:
        """List the Events of one namespace until no job of it needs them."""
        read: frozenset[str] = frozenset()
        num_unchanged, due = 0, 0.0
        while subjects := self._wanted_in(namespace):
            if not subjects.keys() <= read or time.monotonic() >= due:
                is_news = await self._read(namespace, subjects)
                num_unchanged = 0 if is_news or not subjects.keys() <= read else num_unchanged + 1
                read = frozenset(subjects)
                due = time.monotonic() + doubled(FIRST_PAUSE_SECONDS, num_unchanged, LAST_PAUSE_SECONDS)
            await asyncio.sleep(FIRST_PAUSE_SECONDS)

    def _wanted_in(self, namespace: str) -> dict[str, Key]:
        return {subject: key for key, subject in self._wanted.items() if key[0] == namespace}

    async def _read(self, namespace: str, subjects: Mapping[str, Key]) -> bool:
        """Store the latest answer of each subject. Returns whether any of them is new."""
        try:
            async with self._slots:
                latest = await self._latest(namespace, subjects)
        except ApiError as error:
            logger.info("the Events of pods in %s cannot be read: %s", namespace, error)
            return False
        except Exception:  # an unexpected Event must not end the reading
            logger.exception("the Events of pods in %s cannot be read", namespace)
            return False
        news = {
            subjects[about]: answer for about, answer in latest.items() if self._found.get(subjects[about]) != answer
        }
        for key, answer in news.items():
            if self._wanted.get(key) in latest:  # Otherwise it looks up another subject by now.
                self._found[key] = answer
                self._changed(key)
        return bool(news)

    async def _latest(self, namespace: str, subjects: Mapping[str, Key]) -> dict[str, V]:
        found: dict[str, list[Body]] = {}
        for selector in self._lookup.selectors(tuple(subjects)):
            async for page in self._client.pages(EVENTS, namespace, fields=selector):
                for event in page.items:
                    if (subject := self._lookup.subject_of(event)) in subjects:
                        found.setdefault(subject, []).append(event)
        return {subject: self._lookup.answer(events) for subject, events in found.items()}


#: The pod's own status reports other reasons, with clearer messages.
_WARNINGS = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox"})


def _uids(subjects: Collection[str]) -> Sequence[str]:
    objects = f"involvedObject.uid={next(iter(subjects))}" if len(subjects) == 1 else "involvedObject.kind=Pod"
    return (f"{objects},type=Warning",)


def _warned_uid(event: Body) -> str:
    is_warning = event.get("reason") in _WARNINGS and event.get("message")
    return str(event["involvedObject"].get("uid", "")) if is_warning else ""


def _newest_message(events: Sequence[Body]) -> str:
    return printable(
        str(max(events, key=_version)["message"])
    )  # which is kept: core/v1 sets no limit, and anybody may create Events


def _version(event: Body) -> int:
    """Events of the same second differ in it."""
    return int(event["metadata"]["resourceVersion"])


#: What the kubelet reports about a pod, by its uid.
WARNINGS = EventLookup(what="warnings", selectors=_uids, subject_of=_warned_uid, answer=_newest_message)

#: What the cluster autoscaler reports of a pod for which it adds nodes, and Karpenter of one that fits a pending NodeClaim.
_SCALE_UPS = ("TriggeredScaleUp", "Nominated")
#: What the cluster autoscaler reports of a pod for which it adds none, and for which none of those that it has announced has room.
_NO_SCALE_UP = "NotTriggerScaleUp"


def _of_scale_ups(subjects: Collection[str]) -> Sequence[str]:  # noqa: ARG001 a namespace has few Events of these reasons
    return tuple(f"involvedObject.kind=Pod,reason={reason}" for reason in (*_SCALE_UPS, _NO_SCALE_UP))


def _job_that_waits(event: Body) -> str:
    """The name of the job. Karpenter also nominates nodes that exist.

    Of any attempt: nodes that were announced for pods of a gang that then released its places come for the next pods, of which the
    cluster autoscaler says nothing, because those nodes have room for them.
    """
    if event.get("reason") == "Nominated" and "nodeclaim/" not in str(event.get("message")):
        return ""
    return job_of_pod(str(event["involvedObject"].get("name", "")))


def _scale_up(events: Sequence[Body]) -> ScaleUp | None:
    """None if what was last reported is that a pod gets no node: those that are on their way are too few."""
    if max(events, key=_version)["reason"] == _NO_SCALE_UP:
        return None
    announcements = [event for event in events if event["reason"] != _NO_SCALE_UP]
    first = (event["metadata"]["creationTimestamp"] for event in announcements)
    last = (event.get("lastTimestamp") or event["metadata"]["creationTimestamp"] for event in announcements)
    return ScaleUp(since=min(map(epoch_seconds, first)), latest=max(map(epoch_seconds, last)))


#: Whether nodes for a job are on their way, by its name.
SCALE_UPS = EventLookup(what="scale-ups", selectors=_of_scale_ups, subject_of=_job_that_waits, answer=_scale_up)
