"""A gang of thousands is created over minutes, and what happens to its job meanwhile is noticed."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ddpjob_operator.api import names
from ddpjob_operator.kube.engine.actuator import MAX_PARALLEL
from ddpjob_operator.transport.resources import DDPJOBS, PODS
from support.engine import Engine, happens
from support.fake_server import FakeServer

NODES = 4096
KEY = ("ns", "big")


def apply(engine: Engine, server: FakeServer, generation: int = 1, **spec: Any) -> None:
    metadata = {"name": "big", "uid": "u", "generation": generation}
    body = {"metadata": metadata, "spec": {"nodes": NODES, "command": ["python", "x.py"], **spec}}
    engine.store.jobs.put(server.put(DDPJOBS, body))


def deleted(engine: Engine, server: FakeServer) -> None:
    server.remove(DDPJOBS, "big")
    engine.store.jobs.remove(*KEY, uid="u")


def suspended(engine: Engine, server: FakeServer) -> None:
    apply(engine, server, 2, suspend=True)


def failed(engine: Engine, server: FakeServer) -> None:
    ended = {"name": names.MAIN_CONTAINER, "state": {"terminated": {"exitCode": 1}}}
    status = {"phase": "Failed", "containerStatuses": [ended]}
    engine.store.pods.put({**server.find(PODS, "big-1-0"), "status": status})


@pytest.mark.parametrize("event", [deleted, suspended, failed])
async def test_what_happens_to_the_job_ends_the_creation_of_its_pods(
    event: Callable[[Engine, FakeServer], None],
) -> None:
    server = FakeServer()
    engine = Engine(server, num_workers=2, progress_interval_seconds=0)
    apply(engine, server)
    worker = asyncio.create_task(engine.reconciler.work())
    await happens(lambda: len(server.names(PODS)) >= 64, every_seconds=0)
    event(engine, server)
    await happens(lambda: not engine.queue.is_urgent(KEY))
    assert sum(request.plural == "pods" for request in server.requests) <= 64 + 2 * MAX_PARALLEL
    worker.cancel()
