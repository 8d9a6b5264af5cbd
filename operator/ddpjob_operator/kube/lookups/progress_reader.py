"""Reads the progress of training from the log of each running job's rank 0: every ten seconds to every minute.

It needs nothing of the image but a printed line. Reads are spread by jitter, few at a time and of a bounded rate: a log
costs the API server and the kubelet about a millisecond of CPU each, and nothing ever waits for one. The rate of long reads
is bounded as well, whatever programs print.
"""

import asyncio
import heapq
import itertools
import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from ddpjob_operator.api.names import MAIN_CONTAINER
from ddpjob_operator.api.status import Progress
from ddpjob_operator.core.gang import rank0_of
from ddpjob_operator.core.model import Observed
from ddpjob_operator.core.progress import latest_progress, position
from ddpjob_operator.core.times import epoch_seconds
from ddpjob_operator.kube.fair_share import FairSlots
from ddpjob_operator.kube.keys import Key, about, key_of
from ddpjob_operator.kube.metrics import LOG_READS
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ApiError

logger = logging.getLogger(__name__)

TAIL_LINES = 20
LIMIT_BYTES = 256 * 1024
#: Read where other output has pushed the progress line out of the short piece.
LONG_TAIL_LINES = 2000
LONG_LIMIT_BYTES = 1024 * 1024
#: After a long read without a progress line, so many short ones in a row may miss the line before the next long read: the
#: program may be one that never prints it, or prints more than a long read holds.
READS_BETWEEN_FRUITLESS_LONG_ONES = 9
#: Least time between two long reads, over all jobs.
LONG_READ_PAUSE_SECONDS = 0.5
#: The body of a log request can be an error of the node although it succeeded.
_NODE_ERRORS = ("failed to try resolving symlinks", "unable to retrieve container logs", "failed to open log file")
READ_SECONDS = 5.0
#: Reads at the same time for one namespace, while no other has any.
MAX_PARALLEL = 8
#: Reads that begin in a second, unless there are so many jobs that each could not be read once a minute.
READS_PER_SECOND = 20.0
#: The first read of a program comes earlier, but not so early that one that ends within seconds is read at all.
FIRST_READ_SECONDS = 3.0
#: Reads of a job that has run for ten minutes are this far apart, and those of a younger one at most.
LAST_INTERVAL_SECONDS = 60.0
#: All jobs share so many reads, each the same, until each is read once a minute.
READS_PER_MINUTE = 150
#: A job that has just started is read as often as if it were alone, because somebody may be watching it.
WATCHED_SECONDS = 60.0
#: Pauses are longer by a random factor, so that jobs that started together do not stay together.
JITTER = (1.0, 1.2)


@dataclass(slots=True)
class _Target:
    pod: str
    uid: str
    running_since: float | None = None
    """When all ranks of the attempt ran, in seconds since the epoch; None while they do not."""
    hang_seconds: float = math.inf
    """How long the program may make no progress."""
    progress: Progress | None = None
    position: tuple[object, ...] | None = None
    """That of the latest line: a change is progress."""
    read_at: float | None = None
    """When the log was last read, by the loop's clock; None if that failed or showed nothing of the program's progress."""
    silent_seconds: float = 0.0
    next_read_at: float | None = None
    """By the loop's clock; None during a read, unless a further one is planned."""
    is_being_read: bool = False
    num_reads_to_long: int = 0
    """How many reads without a line have to pass before the next long read."""


def pause_seconds(
    interval_seconds: float, ran_seconds: float, hang_seconds: float, silent_seconds: float, num_jobs: int
) -> float:
    """The time between two reads of a job: a tenth of how long it has run, or longer where many jobs share the reads.

    A hang must be noticed in time: what is seen is never older than a tenth of the limit, and a program that has printed
    nothing new is read again when the limit passes. No pause is shorter than the interval, or longer than a minute.
    """
    share = num_jobs * 60 / READS_PER_MINUTE if ran_seconds >= WATCHED_SECONDS else 0.0
    wanted = max(ran_seconds / 10, share)
    longest = min(wanted, LAST_INTERVAL_SECONDS, hang_seconds / 10, hang_seconds - silent_seconds)
    return max(interval_seconds, longest)


def reads_per_second(num_jobs: int) -> float:
    """How many reads may begin in a second: with thousands of jobs more, or hangs would be noticed minutes late."""
    return max(READS_PER_SECOND, num_jobs / LAST_INTERVAL_SECONDS)


class ProgressReader:
    """Follows rank 0 of each running job."""

    def __init__(self, client: Client, interval_seconds: float, changed: Callable[[Key], None]) -> None:
        """An interval of 0 reads nothing. `changed` is called with the key of a job whose progress has changed."""
        self._client = client
        self._interval_seconds = interval_seconds
        self._changed = changed
        self._targets: dict[Key, _Target] = {}
        self._timetable: list[tuple[float, int, Key, _Target]] = []
        self._numbers = itertools.count()
        self._wake = asyncio.Event()
        self._slots = FairSlots(2 * MAX_PARALLEL)
        self._reads: set[asyncio.Task[None]] = set()
        self._next_long_read_at = 0.0

    def latest(self, key: Key, rank0_uid: str | None) -> Progress | None:
        """The latest progress of this very pod."""
        target = self._targets.get(key)
        return target.progress if target and target.uid == rank0_uid else None

    def silent_seconds(self, key: Key, rank0_uid: str | None) -> float:
        """How long the log of this very pod has been readable and has shown neither a new step nor a new phase.

        The clock stops from a read that fails to the next that succeeds.
        """
        target = self._targets.get(key)
        return target.silent_seconds if target and target.uid == rank0_uid else 0.0

    def follow(self, observed: Observed) -> None:
        """Read the log of the current attempt's rank 0 while it runs."""
        key = key_of(observed.job)
        rank0 = rank0_of(observed.pods, observed.job.status)
        if not self._interval_seconds or rank0 is None or not rank0.running:
            self.forget(key)
            return
        target = self._targets.get(key)
        if target is None or target.uid != rank0.uid:
            target = self._targets[key] = _Target(rank0.name, rank0.uid)
            self._plan_read(key, target, min(FIRST_READ_SECONDS, self._interval_seconds))
        status, spec = observed.job.status, observed.job.spec
        running_since = epoch_seconds(status.running_since) if status.running_since else None
        # Perhaps again, with a new pod: rank 0 reports whether that has joined.
        if running_since not in (None, target.running_since):
            self._plan_read(key, target, self._interval_seconds)
        target.running_since = running_since
        target.hang_seconds = spec.deadlines.hang_seconds if spec else math.inf

    def forget(self, key: Key) -> None:
        """Stop following; a read that is planned finds that there is nothing to read."""
        self._targets.pop(key, None)

    async def run(self) -> None:
        """Start the reads that are due, until cancelled."""
        while True:
            now = asyncio.get_running_loop().time()
            if self._timetable and self._timetable[0][0] <= now:
                at, _, key, target = heapq.heappop(self._timetable)
                if self._targets.get(key) is target and target.next_read_at == at:
                    target.next_read_at = None
                    if target.is_being_read:
                        self._plan_read(key, target, READ_SECONDS)
                        continue
                    target.is_being_read = True
                    task = asyncio.create_task(self._read(key, target), name=f"progress of {key[0]}/{key[1]}")
                    self._reads.add(task)
                    task.add_done_callback(self._reads.discard)
                    await asyncio.sleep(1 / reads_per_second(len(self._targets)))
                continue
            self._wake.clear()
            timeout = self._timetable[0][0] - now if self._timetable else None
            try:
                async with asyncio.timeout(timeout):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def stop(self) -> None:
        """Stop all reads."""
        tasks = list(self._reads)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _plan_read(self, key: Key, target: _Target, seconds: float) -> None:
        """Read after so many seconds, unless an earlier read is planned."""
        at = asyncio.get_running_loop().time() + seconds * random.uniform(*JITTER)  # noqa: S311 jitter is no secret
        if target.next_read_at is not None and target.next_read_at <= at:
            return
        target.next_read_at = at
        heapq.heappush(self._timetable, (at, next(self._numbers), key, target))
        self._wake.set()

    async def _read(self, key: Key, target: _Target) -> None:
        try:
            async with self._slots.of(key[0]):
                if self._targets.get(key) is target:
                    await self._look(key, target)
        except ApiError as error:
            LOG_READS.labels("progress", "failed").inc()
            logger.debug("no progress of %s/%s: %s", *key, error)
            target.read_at = None
        except Exception:  # one unreadable line must not end the reading of this job
            logger.exception("no progress of %s/%s", *key, extra=about(key))
            target.read_at = None
        target.is_being_read = False
        if self._targets.get(key) is target:
            self._plan_read(key, target, self._pause_seconds(target))

    def _pause_seconds(self, target: _Target) -> float:
        ran_seconds = 0.0 if target.running_since is None else time.time() - target.running_since
        return pause_seconds(
            self._interval_seconds, ran_seconds, target.hang_seconds, target.silent_seconds, len(self._targets)
        )

    async def _look(self, key: Key, target: _Target) -> None:
        """Store the progress that the end of the log shows."""
        text, is_cut = await self._tail(key, target, TAIL_LINES, LIMIT_BYTES)
        progress = latest_progress(text)
        is_enough = progress is not None or not is_cut
        if not is_enough and (is_enough := self._may_read_long(target)):
            text, is_cut = await self._tail(key, target, LONG_TAIL_LINES, LONG_LIMIT_BYTES)
            progress = latest_progress(text)
            target.num_reads_to_long = 0 if progress is not None else READS_BETWEEN_FRUITLESS_LONG_ONES
        if progress is None and is_enough and (is_cut or text.startswith(_NODE_ERRORS)):
            target.read_at = None  # This piece of log shows nothing of the program's progress.
        elif is_enough:
            self._take(key, target, progress)

    def _may_read_long(self, target: _Target) -> bool:
        """Whether to look further back for a progress line. Without it this read shows nothing, not even silence."""
        if target.num_reads_to_long:
            target.num_reads_to_long -= 1
            return False
        now = asyncio.get_running_loop().time()
        if now < self._next_long_read_at:
            return False
        self._next_long_read_at = now + LONG_READ_PAUSE_SECONDS
        return True

    async def _tail(self, key: Key, target: _Target, lines: int, limit_bytes: int) -> tuple[str, bool]:
        """The end of the log, and whether the log holds more than was requested."""
        text = await self._client.pod_log(
            key[0],
            target.pod,
            container=MAIN_CONTAINER,
            tail_lines=lines,
            limit_bytes=limit_bytes,
            timeout_seconds=READ_SECONDS,
        )
        LOG_READS.labels("progress", "ok").inc()
        num_bytes = len(text.encode())
        return text, text.count("\n") >= lines or num_bytes >= limit_bytes - 4  # cut within a character at most

    def _take(self, key: Key, target: _Target, progress: Progress | None) -> None:
        now = asyncio.get_running_loop().time()
        if target.read_at is not None:
            target.silent_seconds += now - target.read_at
        target.read_at = now
        reached = position(progress) if progress else target.position
        if reached != target.position:
            target.position, target.silent_seconds = reached, 0.0
        if progress is not None and progress != target.progress:
            target.progress = progress
            self._changed(key)
