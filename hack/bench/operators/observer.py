"""What happens to jobs and pods, with the moment at which a watch showed it. Nothing here polls."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from ddpjob_operator.api.resource import Body
from ddpjob_operator.transport.resources import DDPJOBS, MANAGED, PODS, Resource
from support.operator_cluster import Namespace


@dataclass(slots=True)
class PodSeen:
    """A pod at its last event."""

    uid: str
    job: str
    living: bool
    """Whether it neither ended nor is being deleted."""
    running: bool


class Observer:
    """Follows the pods and the jobs of one namespace."""

    def __init__(self, jobs: Namespace, *, pod_labels: str = MANAGED) -> None:
        self._namespace = jobs
        self._kinds = ((DDPJOBS, "", self._take_job), (PODS, pod_labels, self._take_pod))
        self._tasks: list[asyncio.Task[None]] = []
        self._predicate: Callable[[], bool] | None = None
        self._came_true: asyncio.Future[float] | None = None
        self.pods: dict[str, PodSeen] = {}
        self.living: defaultdict[str, set[str]] = defaultdict(set)
        """Names of the living pods of each job."""
        self.num_living = 0
        self.num_running = 0
        self.phases: dict[str, str] = {}
        """Of each job."""
        self.num_in: Counter[str] = Counter()
        """Jobs in each phase."""
        self.num_job_changes = 0

    async def __aenter__(self) -> Self:
        for resource, labels, take in self._kinds:
            pages = self._namespace.client.pages(resource, self._namespace.name, labels)
            versions = [page.resource_version async for page in pages]
            work = self._follow(resource, labels, take, versions[-1])
            self._tasks.append(asyncio.create_task(work, name=f"watch of {resource.plural}"))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def lives(self, job: str, num_pods: int) -> bool:
        """Whether this number of the job's pods lives."""
        return len(self.living[job]) == num_pods

    def runs(self, job: str, num_pods: int) -> bool:
        """Whether this number of the job's pods runs."""
        return sum(self.pods[pod].running for pod in self.living[job]) == num_pods

    def uids(self, job: str) -> set[str]:
        """Of the job's living pods."""
        return {self.pods[pod].uid for pod in self.living[job]}

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
                f"timed out after {seconds:.0f} s waiting for {what}; {self.num_living} pods living, "
                f"{self.num_running} running, {dict(self.num_in)} of {len(self.phases)} jobs"
            )
        return self._came_true.result()

    async def _follow(self, resource: Resource, labels: str, take: Callable[[str, Body], None], version: str) -> None:
        while True:  # The API server ends a watch after some minutes.
            async for event in self._namespace.client.watch(resource, self._namespace.name, labels, version):
                now = time.monotonic()
                version = event.body["metadata"]["resourceVersion"]
                if event.type != "BOOKMARK":
                    take(event.type, event.body)
                if self._predicate and self._came_true and not self._came_true.done() and self._predicate():
                    self._came_true.set_result(now)

    def _take_pod(self, event_type: str, body: Body) -> None:
        name = body["metadata"]["name"]
        if (old := self.pods.pop(name, None)) is not None:
            self.num_living -= old.living
            self.num_running -= old.running
            self.living[old.job].discard(name)
        if event_type == "DELETED":
            return
        states = [status.get("state") or {} for status in body.get("status", {}).get("containerStatuses") or ()]
        ended = body.get("status", {}).get("phase") in ("Succeeded", "Failed") or any("terminated" in s for s in states)
        living = not ended and "deletionTimestamp" not in body["metadata"]
        running = living and bool(states) and all("running" in state for state in states)
        job = name.partition("-")[0]  # job_names() has no hyphen
        pod = self.pods[name] = PodSeen(uid=body["metadata"]["uid"], job=job, living=living, running=running)
        self.num_living += pod.living
        self.num_running += pod.running
        if pod.living:
            self.living[pod.job].add(name)

    def _take_job(self, event_type: str, body: Body) -> None:
        name = body["metadata"]["name"]
        self.num_job_changes += event_type == "MODIFIED"
        if name in self.phases:
            self.num_in[self.phases.pop(name)] -= 1
        if event_type != "DELETED":
            self.phases[name] = (body.get("status") or {}).get("phase", "")
            self.num_in[self.phases[name]] += 1
