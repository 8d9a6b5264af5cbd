"""The ends of logs that explain a failure, each read once.

What they show is kept, not their text, and of a bounded number of jobs: 64 KiB of a log are up to 260 KB of memory as text.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from ddpjob_operator.core.actions import ReadLog
from ddpjob_operator.core.failure.log_parsing import end_of_log
from ddpjob_operator.core.model import NO_LOG, LogEnd
from ddpjob_operator.kube.fair_share import FairSlots
from ddpjob_operator.kube.keys import Key
from ddpjob_operator.kube.lookups.keyed_tasks import KeyedTasks
from ddpjob_operator.kube.metrics import LOG_READS
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ApiError, ThrottledError, UnavailableError

logger = logging.getLogger(__name__)

#: Only the end of it is parsed. limitBytes cuts the end of the requested lines.
LIMIT_BYTES = 1024 * 1024
LINES = 1000
#: Read in addition where the limit has cut the end. They always fit: container runtimes store a line in pieces of 16 KiB, and
#: the kubelet counts each piece as a line.
LAST_LINES = 60
READ_SECONDS = 5.0
#: A log that has not come by then, the wait for a turn included, counts as empty.
DEADLINE_SECONDS = 10.0
#: After an error that may pass, such as that of an API server that has just started, it is read again so long afterwards.
AGAIN_SECONDS = 1.0
#: Reads at the same time for one namespace, while no other has any. A broken image can fail hundreds of jobs at once; the
#: connections are for the creation of pods first.
MAX_AT_ONCE = 8
#: Jobs whose logs are remembered; the log of one that has waited longer than all of these is read again if need be. A job
#: needs those of two attempts at most, of eight ranks each, and one takes 4 KB at most.
MAX_JOBS = 500


class LogReader:
    """Logs by job and uid of the pod. An unreadable log counts as empty, so that no decision waits for it."""

    def __init__(self, client: Client, changed: Callable[[Key], None]) -> None:
        """`changed` is called with the key of a job when one of its logs was read."""
        self._client = client
        self._changed = changed
        self._logs: dict[Key, dict[str, LogEnd]] = {}
        self._reads = KeyedTasks[tuple[Key, str]]()
        self._slots = FairSlots(2 * MAX_AT_ONCE)

    def of(self, key: Key) -> Mapping[str, LogEnd]:
        """What the logs of a job show that were read."""
        return dict(self._logs.get(key, {}))

    def want(self, key: Key, lookups: Iterable[ReadLog], in_use: Collection[str]) -> None:
        """Read these logs of a job, and drop those of pods that are not in use."""
        for lookup in lookups:
            if lookup.uid not in self._logs.get(key, {}):
                self._start(key, lookup)
        if kept := {uid: text for uid, text in self._logs.pop(key, {}).items() if uid in in_use}:
            self._logs[key] = kept

    def forget(self, key: Key) -> None:
        """Drop everything of a job that is gone."""
        self._logs.pop(key, None)
        self._reads.cancel_where(lambda read: read[0] == key)

    async def stop(self) -> None:
        """Stop all reads."""
        await self._reads.stop()

    def _start(self, key: Key, lookup: ReadLog) -> None:
        self._reads.start((key, lookup.uid), lambda: self._read(key, lookup), f"log of {lookup.pod}")

    async def _read(self, key: Key, lookup: ReadLog) -> None:
        log = NO_LOG
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                text = await self._text(key, lookup)
            log = end_of_log(text)
        except ApiError as error:
            logger.info("the log of pod %s/%s cannot be read: %s", key[0], lookup.pod, error)
            LOG_READS.labels("cause", "failed").inc()
        except TimeoutError:
            logger.info("the log of pod %s/%s was not received within %.0f s", key[0], lookup.pod, DEADLINE_SECONDS)
            LOG_READS.labels("cause", "failed").inc()
        except Exception:  # whatever it is: without an answer the job would never end
            logger.exception("the log of pod %s/%s cannot be read", key[0], lookup.pod)
        self._logs.setdefault(key, {})[lookup.uid] = log
        while len(self._logs) > MAX_JOBS:
            del self._logs[next(iter(self._logs))]
        self._changed(key)

    async def _text(self, key: Key, lookup: ReadLog) -> str:
        """The end of the log, once the API server is available."""
        while True:
            try:
                async with self._slots.of(key[0]):
                    return await self._end(key, lookup)
            except (UnavailableError, ThrottledError) as error:
                logger.info("the log of pod %s/%s is read again: %s", key[0], lookup.pod, error)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _end(self, key: Key, lookup: ReadLog) -> str:
        text = await self._tail(key, lookup, LINES)
        if len(text.encode()) >= LIMIT_BYTES - 4:  # cut within a character at most
            text += "\n" + await self._tail(key, lookup, LAST_LINES)
        return text

    async def _tail(self, key: Key, lookup: ReadLog, lines: int) -> str:
        text = await self._client.pod_log(
            key[0],
            lookup.pod,
            container=lookup.container,
            tail_lines=lines,
            limit_bytes=LIMIT_BYTES,
            timeout_seconds=READ_SECONDS,
        )
        LOG_READS.labels("cause", "ok").inc()
        return text
