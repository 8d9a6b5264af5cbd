"""What happens to jobs and pods, with the moment at which a watch showed it. Nothing here polls."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from bench.operators.api import Api, Body

#: Conditions and phases by which operators say that a job has ended well.
SUCCEEDED = frozenset({"Succeeded", "Complete", "Completed"})
FAILED = frozenset({"Failed"})


@dataclass(slots=True)
class PodSeen:
    """A pod at its last event."""

    uid: str
    job: str
    created_at: float
    """When the watch showed it first, on the monotonic clock."""
    living: bool
    """Whether it neither ended nor is being deleted."""
    running: bool


class Observer:
    """Follows the pods and the jobs of one namespace."""

    def __init__(self, api: Api, *, jobs_path: str, pods_path: str, pod_selector: str) -> None:
        self._api = api
        self._paths = {"job": (jobs_path, ""), "pod": (pods_path, pod_selector)}
        self._tasks: list[asyncio.Task[None]] = []
        self._predicate: Callable[[], bool] | None = None
        self._came_true: asyncio.Future[float] | None = None
        self.pods: dict[str, PodSeen] = {}
        self.living: defaultdict[str, set[str]] = defaultdict(set)
        """Names of the living pods of each job."""
        self.num_living = 0
        self.num_running = 0
        self.num_created = 0
        self.jobs: dict[str, str] = {}
        """The outcome of each job: Succeeded, Failed or empty."""
        self.outcomes: Counter[str] = Counter()
        self.num_job_changes = 0

    async def __aenter__(self) -> Self:
        for kind, (path, selector) in self._paths.items():
            page = await self._api.send("GET", f"{path}?limit=1{f'&labelSelector={selector}' if selector else ''}")
            if page["items"]:
                raise ValueError(f"{path} holds {kind}s already; expected an empty namespace")
            work = self._follow(kind, path, selector, page["metadata"]["resourceVersion"])
            self._tasks.append(asyncio.create_task(work, name=f"watch of {kind}s"))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until(self, what: str, predicate: Callable[[], bool], seconds: float) -> float:
        """Wait for the predicate; gives the arrival time of the event that made it true. One wait at a time.

        Raises TimeoutError with what was waited for, and RuntimeError if a watch has ended.
        """
        if predicate():
            return time.monotonic()
        self._predicate, self._came_true = predicate, asyncio.get_running_loop().create_future()
        waits: list[asyncio.Future[Any]] = [self._came_true, *self._tasks]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        self._predicate = None
        for task in self._tasks:
            if task.done():
                raise RuntimeError(f"the {task.get_name()} has ended") from task.exception()
        if not self._came_true.done():
            raise TimeoutError(
                f"timed out after {seconds:.0f} s waiting for {what}; {self.num_created} pods seen, {self.num_living} living, "
                f"{self.num_running} running, {dict(self.outcomes)} of {len(self.jobs)} jobs"
            )
        return self._came_true.result()

    async def _follow(self, kind: str, path: str, selector: str, version: str) -> None:
        take = self._take_job if kind == "job" else self._take_pod
        while True:  # The API server ends the watch of a client that falls behind, and lets it go on from there.
            async for events in self._api.watch(path, selector, version):
                now = time.monotonic()
                for event in events:
                    if event["type"] == "ERROR":
                        raise RuntimeError(str(event["object"]))
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        take(event["type"], event["object"], now)
                if self._predicate and self._came_true and not self._came_true.done() and self._predicate():
                    self._came_true.set_result(now)

    def _take_pod(self, event_type: str, body: Body, now: float) -> None:
        name = body["metadata"]["name"]
        old = self.pods.pop(name, None)
        if old is not None:
            self.num_living -= old.living
            self.num_running -= old.running
            self.living[old.job].discard(name)
        if event_type == "DELETED":
            return
        uid = body["metadata"]["uid"]
        known = old is not None and old.uid == uid
        states = [status.get("state") or {} for status in body.get("status", {}).get("containerStatuses") or ()]
        ended = body.get("status", {}).get("phase") in ("Succeeded", "Failed") or any("terminated" in s for s in states)
        living = not ended and "deletionTimestamp" not in body["metadata"]
        pod = self.pods[name] = PodSeen(
            uid=uid,
            job=job_name_of(name),
            created_at=old.created_at if old is not None and known else now,
            living=living,
            running=living and bool(states) and all("running" in state for state in states),
        )
        self.num_created += not known
        self.num_living += pod.living
        self.num_running += pod.running
        if pod.living:
            self.living[pod.job].add(name)

    def _take_job(self, event_type: str, body: Body, _: float) -> None:
        name = body["metadata"]["name"]
        self.num_job_changes += event_type == "MODIFIED"
        if name in self.jobs:
            self.outcomes[self.jobs.pop(name)] -= 1
        if event_type != "DELETED":
            self.jobs[name] = outcome_of(body.get("status") or {})
            self.outcomes[self.jobs[name]] += 1


def job_name_of(pod_name: str) -> str:
    """The benchmark's jobs are named `b` and four digits, and every operator names pods after their job."""
    match = re.match(r"b\d{4}", pod_name)
    return match[0] if match else ""


def outcome_of(status: Any) -> str:
    """Succeeded, Failed, or empty for a job that has not ended."""
    shown = {c["type"] for c in status.get("conditions") or () if c.get("status") == "True"}
    shown |= {status.get("phase"), status.get("terminalState"), (status.get("state") or None)} - {None}
    return "Succeeded" if shown & SUCCEEDED else "Failed" if shown & FAILED else ""
