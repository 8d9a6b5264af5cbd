"""What the kubelet complains of while a pod does not start: a volume that cannot be mounted stands nowhere but in Events.

One pod of a job is asked about at a time, and only while its gang waits for it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from ddpjob_operator.core.model import Body, ReadWarning
from ddpjob_operator.kube.keys import Key
from ddpjob_operator.kube.transport.client import Client
from ddpjob_operator.kube.transport.errors import ApiError
from ddpjob_operator.kube.transport.resources import EVENTS

logger = logging.getLogger(__name__)

READ_AGAIN_SECONDS = 10.0
MAX_AT_ONCE = 4
#: Events of other reasons are told by the pod's own status, in better words.
TELLING = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox"})


class PodWarnings:
    """The latest telling warning of the pod that each job asks about."""

    def __init__(self, client: Client, answered: Callable[[Key], None]) -> None:
        """`answered` is called with the job's key when there is something new."""
        self._client = client
        self._answered = answered
        self._asked: dict[Key, tuple[str, asyncio.Task[None]]] = {}
        self._found: dict[Key, tuple[str, str]] = {}
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)

    def of(self, key: Key) -> Mapping[str, str]:
        """The warning, by uid of the pod."""
        return dict([self._found[key]]) if key in self._found else {}

    def ask(self, key: Key, question: ReadWarning | None) -> None:
        """This is what the job asks now."""
        uid = question.uid if question else None
        if key in self._asked and self._asked[key][0] != uid:
            self._asked.pop(key)[1].cancel()
            self._found.pop(key, None)
        if question is not None and key not in self._asked:
            task = asyncio.create_task(self._follow(key, question), name=f"warnings of {question.pod}")
            self._asked[key] = (question.uid, task)

    async def stop(self) -> None:
        """Read nothing any more."""
        tasks = [task for _, task in self._asked.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, key: Key, question: ReadWarning) -> None:
        while True:
            try:
                async with self._slots:
                    text = await self._latest(key[0], question.uid)
                if text and self._found.get(key) != (question.uid, text):
                    self._found[key] = (question.uid, text)
                    self._answered(key)
            except ApiError as error:
                logger.info("the events of pod %s/%s cannot be read: %s", key[0], question.pod, error)
            except Exception:  # a strange event must not end the reading
                logger.exception("the events of pod %s/%s could not be read", key[0], question.pod)
            await asyncio.sleep(READ_AGAIN_SECONDS)

    async def _latest(self, namespace: str, uid: str) -> str:
        found: list[Body] = []
        async for page in self._client.pages(EVENTS, namespace, fields=f"involvedObject.uid={uid},type=Warning"):
            found += (event for event in page.items if event.get("reason") in TELLING)
        latest = max(found, key=lambda event: int(event["metadata"]["resourceVersion"]), default={})
        return str(latest.get("message") or "")
