"""The log of a whole job: the logs of its ranks as one stream, which continues with the next attempts.

A log that has ended is merged by the times that the kubelet wrote. While the log is followed, the lines of each rank are in
order and those of different ranks come as they arrive.
"""

import asyncio
import heapq
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any, Literal

from ddpjob.client.errors import ClientError, ConflictError, client_error, replaced
from ddpjob.client.jobs import Job, Pod, read_job, read_pod
from ddpjob.client.objects import MAX_LOGS
from ddpjob.client.outage import RETRY_SECONDS, Outage
from ddpjob_operator.api.names import MAIN_CONTAINER
from ddpjob_operator.core.times import epoch_seconds
from ddpjob_operator.core.untrusted import visible
from ddpjob_operator.transport.client import Client as Transport
from ddpjob_operator.transport.errors import ApiError, GoneError, NotFoundError, ThrottledError, UnavailableError
from ddpjob_operator.transport.resources import DDPJOBS, PODS, Resource, of_job

#: Lines that wait for a reader before the streams are read no further.
_QUEUED_LINES = 1000
#: A change is often one of several.
_TURN_SECONDS = 0.2
#: Errors of the API server after which reading goes on: it is busy or not available, or a list took too long.
_PASSING = (UnavailableError, ThrottledError, GoneError)
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)$")

Attempt = int | Literal["all"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line that a rank printed, without control characters."""

    attempt: int
    rank: int
    pod: str
    node: str | None
    time: str
    """When the node received the line, as RFC 3339; empty where the node does not say."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which lines to read."""

    ranks: Collection[int] | None = None
    """None: all."""
    attempt: Attempt = None
    """None: the current one, and with `follow` those after it."""
    tail_lines: int | None = None
    """The last lines of each rank."""
    since_seconds: int | None = None

    def wants(self, pod: Pod, current: int, *, follow: bool) -> bool:
        """Whether the log of this pod is read."""
        if self.ranks is not None and pod.rank not in self.ranks:
            return False
        if self.attempt == "all":
            return True
        if self.attempt is None:
            return pod.attempt >= current if follow else pod.attempt == current
        return pod.attempt == self.attempt


def read_line(pod: Pod, raw: str) -> LogLine:
    """The line of a log that was read with times."""
    time, _, text = raw.partition(" ")
    if not _TIME.match(time):
        time, text = "", raw
    return LogLine(
        attempt=pod.attempt, rank=pod.rank, pod=pod.name, node=pod.node, time=time, text=visible(text.rstrip("\n"))
    )


async def finished_log(
    api: Transport,
    namespace: str,
    pods: Sequence[Pod],
    selection: Selection,
    note: Callable[[str], None],
) -> AsyncGenerator[LogLine, None]:
    """What these pods have printed so far, by attempt and then by time."""
    for attempt in sorted({pod.attempt for pod in pods}):
        of_attempt = [pod for pod in pods if pod.attempt == attempt]
        async with AsyncExitStack() as stack:
            streams = []
            for pod in of_attempt:
                stream = await stack.enter_async_context(
                    aclosing(_pod_lines(api, namespace, pod, selection, note, follow=False))
                )
                streams.append(stream)
            async for line in _merged(streams):
                yield line


async def _merged(streams: Sequence[AsyncGenerator[LogLine, None]]) -> AsyncIterator[LogLine]:
    """The lines of all streams by time; a line without a time keeps its place after the one before it."""
    reads = [asyncio.ensure_future(anext(stream, None)) for stream in streams]
    try:
        first = await asyncio.gather(*reads)
    finally:  # after an error others are still being read, and such a stream cannot be closed
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
    heads = [(order(line.time), index, line) for index, line in enumerate(first) if line is not None]
    heapq.heapify(heads)
    while heads:
        key, index, line = heads[0]
        yield line
        following = await anext(streams[index], None)
        if following is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (order(following.time) if following.time else key, index, following))


async def _pod_lines(
    api: Transport,
    namespace: str,
    pod: Pod,
    selection: Selection,
    note: Callable[[str], None],
    *,
    follow: bool,
    since_time: str = "",
) -> AsyncGenerator[LogLine, None]:
    """The log of one pod; where it cannot be read, `note` says why."""
    lines = api.pod_log_lines(
        namespace,
        pod.name,
        container=MAIN_CONTAINER,
        follow=follow,
        tail_lines=selection.tail_lines,
        since_seconds=selection.since_seconds,
        since_time=since_time or None,
    )
    try:
        async with aclosing(lines):
            async for raw in lines:
                yield read_line(pod, raw)
    except NotFoundError:
        note(f"rank {pod.rank}: the pod {pod.name} is gone, and its log with it")
    except ApiError as error:
        if error.status in (401, 403):
            raise client_error(error, "get", PODS, namespace, pod.name) from error
        note(f"rank {pod.rank}: the log of {pod.name} cannot be read: {visible(error.message)}")


async def followed_log(
    api: Transport, namespace: str, name: str, selection: Selection, note: Callable[[str], None]
) -> AsyncGenerator[LogLine, None]:
    """What all ranks print, until the job has finished; later attempts are followed unless one is selected."""
    follower = _Follower(api, namespace, name, selection, note)
    task = asyncio.create_task(follower.run())
    try:
        while (line := await follower.lines.get()) is not None:
            yield line
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Follower:
    """Reads the log of each pod as soon as it has one."""

    def __init__(
        self, api: Transport, namespace: str, name: str, selection: Selection, note: Callable[[str], None]
    ) -> None:
        self._api, self._namespace, self._name = api, namespace, name
        self._selection, self._note = selection, note
        self.lines: asyncio.Queue[LogLine | None] = asyncio.Queue(_QUEUED_LINES)
        self._ended: dict[str, asyncio.Event] = {}
        """For each pod that is read: set as soon as it prints no more."""
        self._attempt = 0

    async def run(self) -> None:
        """Put all lines into the queue, then None, unless it is cancelled: nobody reads then, and the queue may be full."""
        try:
            async with asyncio.TaskGroup() as streams:
                await self._watch(streams)
        except* ApiError as errors:
            raise client_error(_first(errors), "watch", DDPJOBS, self._namespace, self._name) from None
        except* ClientError as errors:
            raise _first(errors) from None
        finally:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                await self.lines.put(None)

    async def _watch(self, streams: asyncio.TaskGroup) -> None:
        """Start streams until there can be no further pod.

        Each turn reads the job and its pods and then waits for the next change of either, so a watch that breaks loses
        nothing.
        """
        first, uid = 0, ""
        outage = Outage()
        try:
            while True:
                try:
                    job, pods, version = await self._state()
                except _PASSING as error:
                    if not first:
                        raise
                    await outage.pause(error)
                    continue
                outage.is_over()
                uid = uid or job.uid
                if job.uid != uid:
                    raise replaced(self._namespace, self._name, "logs -f")
                first = first or job.status.attempt
                self._report_attempt(job.status.attempt, job.status.message or "")
                wanted = [pod for pod in pods if self._selection.wants(pod, first, follow=True)]
                self._start(wanted, streams)
                if job.finished or job.deleting or self._is_over(job.status.attempt):
                    return
                await self._next_change(job, version)
        finally:
            for ended in self._ended.values():
                ended.set()

    async def _state(self) -> tuple[Job, list[Pod], str]:
        """The job, its pods, and the version to watch pods from."""
        job = read_job(await self._api.get(DDPJOBS, self._namespace, self._name))
        pages = [page async for page in self._api.pages(PODS, self._namespace, of_job(job.uid))]
        pods = [pod for page in pages for body in page.items if (pod := read_pod(body)) is not None]
        return job, pods, pages[-1].resource_version

    def _start(self, wanted: Sequence[Pod], streams: asyncio.TaskGroup) -> None:
        """Read the pods that have a log by now, and end the streams of those that print no more."""
        if sum(not pod.finished for pod in wanted) > MAX_LOGS:
            raise too_many(self._namespace, self._name, len(wanted))
        for pod in wanted:
            if pod.started and pod.name not in self._ended:
                self._ended[pod.name] = asyncio.Event()
                streams.create_task(self._stream(pod, self._ended[pod.name]))
        may_print = {pod.name for pod in wanted if not pod.finished}
        for name, ended in self._ended.items():
            if name not in may_print:
                ended.set()

    def _is_over(self, attempt: int) -> bool:
        return isinstance(self._selection.attempt, int) and attempt > self._selection.attempt

    def _report_attempt(self, attempt: int, message: str) -> None:
        if self._attempt and attempt != self._attempt:
            self._note(f"attempt {self._attempt} has ended, attempt {attempt} starts: {visible(message)}")
        self._attempt = attempt

    async def _stream(self, pod: Pod, ended: asyncio.Event) -> None:
        """All lines of one pod. A stream may break, or not end with its pod, so the log is read again from its last line."""
        place = _Place()
        while not ended.is_set():
            reading = asyncio.create_task(self._read(pod, place, self._selection, follow=True))
            end = asyncio.create_task(ended.wait())
            try:
                await asyncio.wait((reading, end), return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait((reading,), timeout=RETRY_SECONDS)
            finally:
                reading.cancel()
                end.cancel()
                results = await asyncio.gather(reading, end, return_exceptions=True)
            if isinstance(results[0], Exception):
                raise results[0]
            if not ended.is_set():
                await asyncio.sleep(RETRY_SECONDS)
        await self._read(pod, place, self._selection, follow=False)

    async def _read(self, pod: Pod, place: "_Place", selection: Selection, *, follow: bool) -> None:
        """Put those lines into the queue that were not read before."""
        place.rewind()
        lines = _pod_lines(
            self._api,
            self._namespace,
            pod,
            Selection() if place.time else selection,
            _ignore if follow else self._note,
            follow=follow,
            since_time=place.time,
        )
        async with aclosing(lines):
            async for line in lines:
                if not place.has_read(line):
                    await self.lines.put(line)
                    place.add(line)

    async def _next_change(self, job: Job, version: str) -> None:
        """Return when something about the job or its pods may have changed, at most a few times a second."""
        selection = f"metadata.name={self._name}"
        watches = [
            asyncio.create_task(self._first_event(PODS, of_job(job.uid), "", version)),
            asyncio.create_task(self._first_event(DDPJOBS, "", selection, job.body["metadata"]["resourceVersion"])),
        ]
        try:
            await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for watch in watches:
                watch.cancel()
            results = await asyncio.gather(*watches, return_exceptions=True)
        await asyncio.sleep(_TURN_SECONDS)
        for result in results:
            if isinstance(result, GoneError):
                continue  # everything is read again anyway
            if isinstance(result, _PASSING):
                await asyncio.sleep(RETRY_SECONDS)
            elif isinstance(result, Exception):
                raise result

    async def _first_event(self, resource: Resource, labels: str, fields: str, version: str) -> None:
        events = self._api.watch(resource, self._namespace, labels, version, fields=fields)
        async with aclosing(events):
            async for event in events:
                if event.type != "BOOKMARK":
                    return


class _Place:
    """How far a log has been read: the time of the last line, and how many lines have this time."""

    def __init__(self) -> None:
        self.time = ""
        self._count = 0
        self._to_skip = 0
        self._is_catching_up = False

    def rewind(self) -> None:
        """The log is read again from the lines of the last time on."""
        self._to_skip, self._is_catching_up = self._count, bool(self.time)

    def has_read(self, line: LogLine) -> bool:
        """Whether this line was read before the log was read again."""
        if not self._is_catching_up:
            return False
        if not line.time or order(line.time) < order(self.time):
            return True
        if line.time == self.time and self._to_skip:
            self._to_skip -= 1
            return True
        self._is_catching_up = False
        return False

    def add(self, line: LogLine) -> None:
        """The line has been read."""
        if line.time:
            self._count = self._count + 1 if line.time == self.time else 1
            self.time = line.time


def note_missing(job: Job, pods: Collection[Pod], selection: Selection, note: Callable[[str], None]) -> None:
    """Say which of the selected ranks have no log, and why."""
    for pod in pods:
        if not pod.started:
            why = f": {pod.message}" if pod.message else ""
            note(f"rank {pod.rank}: the pod {pod.name} has no log yet ({pod.state}{why})")
    if selection.attempt == "all":
        there = {pod.attempt for pod in pods}
        # The pods of the current attempt may not exist yet.
        gone = [number for number in range(1, job.status.attempt + job.finished) if number not in there]
        if gone:
            note(
                f"no pods of attempt {', '.join(map(str, gone))} exist any more: survivors of a failed attempt are deleted"
                " when the next one starts"
            )
    if not pods:
        message = job.status.message or "no operator has acted on it yet"
        note(f"{_absent(job, selection)}; the job is {job.phase}: {message}")


def _absent(job: Job, selection: Selection) -> str:
    """What of the selection does not exist."""
    newest = job.status.attempt
    attempt = selection.attempt if isinstance(selection.attempt, int) else newest
    if attempt > newest:
        return f"attempt {attempt} has not started, and the newest one is {newest}"
    ranks = "" if selection.ranks is None else f" with rank {', '.join(map(str, sorted(selection.ranks)))}"
    return f"no pods of attempt {attempt}{ranks} exist"


def too_many(namespace: str, name: str, count: int) -> ConflictError:
    """The error for more logs than are read at once."""
    return ConflictError(
        f"DDPJob {namespace}/{name}: {count} pods match, and at most {MAX_LOGS} logs are read at once; select ranks, such as 0-99"
    )


def order(time: str) -> tuple[float, str]:
    """A sort key of a line's time, which has up to nine digits of a second and the zone of its node."""
    found = _TIME.match(time)
    if not found:
        return (0.0, "")
    seconds, fraction, zone = found.groups()
    return (epoch_seconds(seconds + zone), fraction or "")


def _ignore(text: str) -> None:
    """While the pod may print, its log is read again, so no error is final."""


def _first(errors: BaseExceptionGroup[Exception]) -> Any:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
