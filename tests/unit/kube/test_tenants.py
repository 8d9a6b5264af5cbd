"""What one namespace does to the jobs of another: its webhooks and nodes may hang, the others go on."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.api.names import ConditionType
from ddpjob_operator.api.status import Condition, DDPJobStatus
from ddpjob_operator.core.actions import ReadLog
from ddpjob_operator.core.model import NO_LOG, Body, Job, Observed
from ddpjob_operator.kube.engine.event_recorder import EventRecorder
from ddpjob_operator.kube.lookups import log_reader
from ddpjob_operator.kube.lookups.lookups import Lookups
from ddpjob_operator.transport.errors import ApiError, RejectedError
from ddpjob_operator.transport.resources import EVENTS, PODS, Resource
from support.engine import Engine, happens
from support.lookup_cluster import JOB, Keys

NUM_WORKERS = 16


class Cluster:
    """Answers at once, but never a request about the namespace `hanging`."""

    def __init__(self) -> None:
        self.created: list[tuple[str, str, str]] = []
        """Kind, namespace and name of what was created."""
        self.logs: list[tuple[str, str]] = []
        """Namespace and name of each pod whose log was read."""
        self.errors: dict[str, ApiError] = {}
        """What the creation of an Event ends with, by namespace."""

    async def create(self, resource: Resource, namespace: str, body: Body) -> Body:
        await self._answer(namespace)
        if resource is EVENTS and (error := self.errors.get(namespace)):
            raise error
        self.created.append((resource.plural, namespace, body["metadata"]["name"]))
        return body

    async def merge_patch(self, _resource: Resource, namespace: str, name: str, patch: Body, **_: Any) -> Body:
        await self._answer(namespace)
        return {**job_body(namespace, name), "status": patch["status"]}

    async def pod_log(self, namespace: str, pod: str, **__: Any) -> str:
        self.logs.append((namespace, pod))
        await self._answer(namespace)
        return "ValueError: boom\n"

    async def _answer(self, namespace: str) -> None:
        if namespace == "hanging":
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    def num_pods(self, namespace: str) -> int:
        return sum(kind == PODS.plural and of == namespace for kind, of, _ in self.created)


def job_body(namespace: str, name: str, nodes: int = 4) -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name, "uid": f"{namespace}-{name}", "generation": 1}
    return {"metadata": {**metadata, "resourceVersion": "7"}, "spec": {"nodes": nodes, "command": ["python", "x.py"]}}


async def test_a_job_starts_while_every_request_of_another_namespace_hangs() -> None:
    cluster: Any = Cluster()
    engine = Engine(cluster, NUM_WORKERS, progress_interval_seconds=0)
    workers = [asyncio.create_task(engine.reconciler.work()) for _ in range(NUM_WORKERS)]
    for number in range(40):
        engine.store.jobs.put(job_body("hanging", f"job-{number}", nodes=40))
    await asyncio.sleep(0)
    for number in range(10):
        engine.store.jobs.put(job_body("quick", f"job-{number}"))

    await happens(lambda: cluster.num_pods("quick") == 40)
    for worker in workers:
        worker.cancel()


def failed_job(namespace: str, name: str) -> Job:
    return replace(JOB, namespace=namespace, name=name, uid=f"{namespace}-{name}")


def want_log(lookups: Lookups, namespace: str, name: str) -> None:
    lookups.update(Observed(job=failed_job(namespace, name)), [ReadLog(pod=f"{name}-1-0", uid=f"{name}-uid")])


def hanging() -> tuple[Cluster, Keys, Lookups]:
    """Lookups of the logs of 40 jobs in the namespace that does not answer."""
    cluster, keys = Cluster(), Keys()
    lookups = Lookups(cluster, keys.put_nowait)  # type: ignore[arg-type]  # it does what a Client does
    for number in range(40):
        want_log(lookups, "hanging", f"job-{number}")
    return cluster, keys, lookups


async def test_a_log_is_read_while_those_of_another_namespace_do_not_come() -> None:
    cluster, keys, lookups = hanging()
    await asyncio.sleep(0)
    want_log(lookups, "quick", "job")

    assert await keys.next() == ("quick", "job")
    assert cluster.logs[-1] == ("quick", "job-1-0"), "a job's pods are read in the job's own namespace"
    await lookups.stop()


async def test_a_log_that_waits_too_long_for_its_turn_counts_as_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "DEADLINE_SECONDS", 0.01)
    cluster, keys, lookups = hanging()
    ended = {await keys.next() for _ in range(40)}
    assert len(ended) == 40
    assert len(cluster.logs) < 40, "those that waited were not read"
    assert all(lookups.logs(key) == {f"{key[1]}-uid": NO_LOG} for key in ended)
    await lookups.stop()


FAILED = Condition(type=ConditionType.FAILED, status="True", reason="x", last_transition_time="")
ENDED = DDPJobStatus(conditions=[FAILED])


def recording(cluster: Cluster) -> tuple[EventRecorder, asyncio.Task[None]]:
    recorder = EventRecorder(cluster, "test")  # type: ignore[arg-type]  # it does what a Client does
    return recorder, asyncio.create_task(recorder.run())


def num_events(cluster: Cluster, namespace: str) -> int:
    return sum(kind == EVENTS.plural and of == namespace for kind, of, _ in cluster.created)


@pytest.mark.parametrize(
    "error",
    [None, RejectedError("create events", "the namespace is being terminated", status=403)],
    ids=["hangs", "403"],
)
async def test_events_are_written_while_those_of_another_namespace_hang_or_are_refused(error: ApiError | None) -> None:
    """No pause is waited for: on the loop's clock the test would end at its limit of 5 s."""
    cluster, other = Cluster(), "dying" if error else "hanging"
    if error:
        cluster.errors[other] = error
    recorder, writing = recording(cluster)
    for number in range(3000):
        recorder.record(failed_job(other, f"job-{number}"), DDPJobStatus(), ENDED)
    for number in range(30):
        recorder.record(failed_job("quick", f"job-{number}"), DDPJobStatus(), ENDED)

    await happens(lambda: num_events(cluster, "quick") == 30)
    writing.cancel()
