"""A gang of thousands is created over minutes, and what happens to its job meanwhile is noticed."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ddpjob_operator.api import names
from ddpjob_operator.core.model import Body
from ddpjob_operator.kube.engine.actuator import MAX_PARALLEL
from ddpjob_operator.transport.errors import NotFoundError
from ddpjob_operator.transport.resources import PODS, Resource
from support.engine import Engine, happens

NODES = 4096
KEY = ("ns", "big")


def job_body(version: int = 7, generation: int = 1, **spec: Any) -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": "big", "uid": "u", "generation": generation, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"nodes": NODES, "command": ["python", "x.py"], **spec}}


class Cluster:
    """Creates what is asked for; its watch shows nothing unless a test does."""

    def __init__(self) -> None:
        self.pods: list[Body] = []
        self.exists = True

    async def create(self, resource: Resource, _namespace: str, body: Body) -> Body:
        await asyncio.sleep(0)
        if resource is PODS:
            self.pods.append(body)
        return body

    async def merge_patch(self, _resource: Resource, *_: Any, **__: Any) -> Body:
        if not self.exists:
            raise NotFoundError("patch ddpjobs big", "not found", status=404)
        return job_body()

    async def delete_collection(self, *_: Any) -> None:
        return


def deleted(engine: Engine, cluster: Cluster) -> None:
    cluster.exists = False
    engine.store.jobs.remove(*KEY, uid="u")


def suspended(engine: Engine, _: Cluster) -> None:
    engine.store.jobs.put(job_body(8, 2, suspend=True))


def failed(engine: Engine, cluster: Cluster) -> None:
    first = cluster.pods[0]
    ended = {"name": names.MAIN_CONTAINER, "state": {"terminated": {"exitCode": 1}}}
    metadata = {**first["metadata"], "uid": "pod", "resourceVersion": "9"}
    engine.store.pods.put({**first, "metadata": metadata, "status": {"phase": "Failed", "containerStatuses": [ended]}})


@pytest.mark.parametrize("event", [deleted, suspended, failed])
async def test_what_happens_to_the_job_ends_the_creation_of_its_pods(event: Callable[[Engine, Cluster], None]) -> None:
    cluster = Cluster()
    engine = Engine(cluster, num_workers=2, progress_interval_seconds=0)
    engine.store.jobs.put(job_body())
    worker = asyncio.create_task(engine.reconciler.work())
    await happens(lambda: len(cluster.pods) >= 64, every_seconds=0)
    event(engine, cluster)
    await happens(lambda: not engine.queue.is_urgent(KEY))
    assert len(cluster.pods) <= 64 + 2 * MAX_PARALLEL
    worker.cancel()
