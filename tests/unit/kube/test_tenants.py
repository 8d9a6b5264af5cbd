"""What one namespace does to the jobs of another: its webhooks and nodes may hang, the others go on."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from ddpjob_operator.api.names import ConditionType
from ddpjob_operator.api.status import Condition, DDPJobStatus
from ddpjob_operator.core.actions import ReadLog
from ddpjob_operator.core.model import NO_LOG, Job, Observed
from ddpjob_operator.kube.engine.event_recorder import EventRecorder
from ddpjob_operator.kube.engine.job_memory import JobMemories
from ddpjob_operator.kube.lookups.lookups import Lookups
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ApiError, RejectedError
from ddpjob_operator.transport.resources import DDPJOBS, EVENTS, PODS
from support.engine import Engine, happens
from support.fake_server import FakeServer
from support.lookup_jobs import JOB, Keys

NUM_WORKERS = 16


def cluster() -> FakeServer:
    """Answers at once, but never a request about the namespace `hanging`."""
    return FakeServer(log="ValueError: boom\n", hang=lambda request: request.namespace == "hanging")


def job_body(namespace: str, name: str, nodes: int = 4) -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name, "uid": f"{namespace}-{name}", "generation": 1}
    return {"metadata": {**metadata, "resourceVersion": "7"}, "spec": {"nodes": nodes, "command": ["python", "x.py"]}}


async def test_a_job_starts_while_every_request_of_another_namespace_hangs() -> None:
    server = cluster()
    engine = Engine(server, NUM_WORKERS, progress_interval_seconds=0)
    workers = [asyncio.create_task(engine.reconciler.work()) for _ in range(NUM_WORKERS)]
    for number in range(40):
        engine.store.jobs.put(job_body("hanging", f"job-{number}", nodes=40))
    await asyncio.sleep(0)
    for number in range(10):
        engine.store.jobs.put(server.put(DDPJOBS, job_body("quick", f"job-{number}")))

    await happens(lambda: len(server.names(PODS, "quick")) == 40)
    for worker in workers:
        worker.cancel()


def failed_job(namespace: str, name: str) -> Job:
    return replace(JOB, namespace=namespace, name=name, uid=f"{namespace}-{name}")


def want_log(lookups: Lookups, namespace: str, name: str) -> None:
    lookups.update(Observed(job=failed_job(namespace, name)), [ReadLog(pod=f"{name}-1-0", uid=f"{name}-uid")])


def hanging() -> tuple[FakeServer, Keys, Lookups]:
    """Lookups of the logs of 40 jobs in the namespace that does not answer."""
    server, keys = cluster(), Keys()
    lookups = Lookups(cast("Client", server), keys.put_nowait)
    for number in range(40):
        want_log(lookups, "hanging", f"job-{number}")
    return server, keys, lookups


async def test_a_log_is_read_while_those_of_another_namespace_do_not_come() -> None:
    server, keys, lookups = hanging()
    await asyncio.sleep(0)
    want_log(lookups, "quick", "job")

    assert await keys.next() == ("quick", "job")
    assert server.requests[-1] == ("log", "pods", "quick", "job-1-0"), (
        "a job's pods are read in the job's own namespace"
    )
    await lookups.stop()


async def test_a_log_that_waits_too_long_for_its_turn_counts_as_empty() -> None:
    server, keys, lookups = hanging()
    ended = {await keys.next() for _ in range(40)}
    assert len(ended) == 40
    assert server.num("log") < 40, "those that waited were not read"
    assert all(lookups.logs(key) == {f"{key[1]}-uid": NO_LOG} for key in ended)
    await lookups.stop()


FAILED = Condition(type=ConditionType.FAILED, status="True", reason="x", last_transition_time="2026-01-01T00:00:00Z")
ENDED = DDPJobStatus(conditions=[FAILED])


@pytest.mark.parametrize(
    "error",
    [None, RejectedError("create events", "the namespace is being terminated", status=403)],
    ids=["hangs", "403"],
)
async def test_events_are_written_while_those_of_another_namespace_hang_or_are_refused(error: ApiError | None) -> None:
    """No pause is waited for: no time passes on the loop's clock."""
    other = "dying" if error else "hanging"
    server = cluster()
    server.refuse = lambda request: error if request.namespace == "dying" else None
    recorder = EventRecorder(cast("Client", server), "test", JobMemories())
    writing = asyncio.create_task(recorder.run())
    for number in range(3000):
        recorder.record(failed_job(other, f"job-{number}"), DDPJobStatus(), ENDED)
    for number in range(30):
        recorder.record(failed_job("quick", f"job-{number}"), DDPJobStatus(), ENDED)

    began = asyncio.get_running_loop().time()
    for _ in range(10_000):
        await asyncio.sleep(0)
    assert len(server.names(EVENTS, "quick")) == 30
    assert asyncio.get_running_loop().time() == began
    writing.cancel()
