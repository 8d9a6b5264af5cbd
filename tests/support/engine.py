"""The reconciler with all its parts, as `app.py` puts them together, around a stand-in for the API server."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ddpjob_operator.kube.cache.store import Store
from ddpjob_operator.kube.engine.actuator import Actuator
from ddpjob_operator.kube.engine.event_recorder import EventRecorder
from ddpjob_operator.kube.engine.expectations import Expectations
from ddpjob_operator.kube.engine.job_memory import JobMemories
from ddpjob_operator.kube.engine.reconciler import Reconciler
from ddpjob_operator.kube.engine.rejections import Rejections
from ddpjob_operator.kube.engine.status_writer import StatusWriter
from ddpjob_operator.kube.engine.workqueue import WorkQueue
from ddpjob_operator.kube.keys import Key
from ddpjob_operator.kube.lookups.lookups import Lookups
from ddpjob_operator.kube.lookups.progress_reader import ProgressReader
from ddpjob_operator.scheduling.interface import Provider
from ddpjob_operator.scheduling.none import NO_PROVIDER


@dataclass
class Engine:
    """The parts of one operator process."""

    client: Any
    num_workers: int = 1
    progress_interval_seconds: float = 3600.0
    provider: Provider = NO_PROVIDER
    memories: JobMemories = field(default_factory=JobMemories)

    def __post_init__(self) -> None:
        client, self.queue = self.client, WorkQueue(self.num_workers)
        self.rejections, self.expectations = Rejections(self.memories), Expectations(self.memories)
        self.store = Store(self.queue.add, self._name_is_free)
        for watched in self.provider.watched:
            self.store.watch(watched)
        self.progress = ProgressReader(client, self.progress_interval_seconds, self.queue.add)
        self.reconciler = Reconciler(
            client=client,
            queue=self.queue,
            store=self.store,
            memories=self.memories,
            expectations=self.expectations,
            rejections=self.rejections,
            actuator=Actuator(client, self.store, self.expectations, self.rejections),
            status_writer=StatusWriter(client, self.store, EventRecorder(client, "test", self.memories), self.memories),
            lookups=Lookups(client, self.queue.add),
            progress=self.progress,
            trainer_image="trainer:1",
            provider=self.provider,
        )

    def _name_is_free(self, namespace: str, name: str) -> None:
        for key in self.rejections.name_is_free(namespace, name):
            self.queue.add(key)


def ignored(key: Key, *, first: bool) -> None:
    """For a store of which nobody reconciles the jobs."""


def new_store() -> Store:
    """A store of which nobody reconciles the jobs."""
    return Store(ignored, lambda *_: None)


async def happens(condition: Callable[[], bool], *, every_seconds: float = 0.05) -> None:
    """Let the other tasks run, and the time pass, until the condition holds; TimeoutError after ten minutes.

    With 0 seconds it is looked at in each turn of the loop.
    """
    async with asyncio.timeout(600):
        while not condition():  # noqa: ASYNC110 the stand-in has no event for each thing a test may wait for
            await asyncio.sleep(every_seconds)
