"""The recorder of Events: what `kubectl describe ddpjob` shows, and how many Events a job may have."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import testbed
from ddpjob_operator.api.names import ConditionType
from ddpjob_operator.api.status import Condition, DDPJobStatus
from ddpjob_operator.core.events import Notice
from ddpjob_operator.core.model import Job
from ddpjob_operator.core.records import job_of
from ddpjob_operator.kube.engine import event_recorder as module
from ddpjob_operator.kube.engine.event_recorder import BUDGET, EventRecorder
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.resources import EVENTS
from support.operator_cluster import Namespace, eventually

SOME = DDPJobStatus()
ENDED = DDPJobStatus(
    conditions=[Condition(type=ConditionType.FAILED, status="True", reason="x", last_transition_time="")]
)


@pytest.fixture
def notices(monkeypatch: pytest.MonkeyPatch) -> list[Notice]:
    """The Events that the next status leads to."""
    notices: list[Notice] = []
    monkeypatch.setattr(module, "events_between", lambda _before, _after: tuple(notices))
    return notices


@pytest.fixture
async def recorder(client: Client) -> AsyncIterator[EventRecorder]:
    """The recorder, running."""
    recorder = EventRecorder(client, "operator-0")
    working = asyncio.create_task(recorder.run())
    yield recorder
    working.cancel()


@pytest.fixture
async def job(namespace: Namespace) -> Job:
    """A job on the API server."""
    return job_of(await namespace.apply("j"))


def notice(message: str) -> Notice:
    return Notice(type="Warning", reason="ProgramError", message=message)


async def events(namespace: Namespace) -> list[dict[str, Any]]:
    found = [item async for page in namespace.client.pages(EVENTS, namespace.name) for item in page.items]
    return [dict(item) for item in found if item["involvedObject"]["kind"] == "DDPJob"]


async def come_to(namespace: Namespace, *counts: int) -> list[dict[str, Any]]:
    """Wait for Events with these counts; gives them."""

    async def so() -> list[dict[str, Any]] | None:
        found = await events(namespace)
        return found if sorted(event["count"] for event in found) == sorted(counts) else None

    return list(await eventually(f"Events with the counts {counts}", so) or [])


async def test_kubectl_describe_shows_what_happened(
    cluster: testbed.ControlPlane, namespace: Namespace, recorder: EventRecorder, job: Job, notices: list[Notice]
) -> None:
    notices.append(notice("Rank 1 ended with exit code 1"))
    recorder.record(job, SOME, SOME)
    recorder.record(job, SOME, SOME)
    (event,) = await come_to(namespace, 2)
    assert event["involvedObject"]["uid"] == job.uid
    text = cluster.kubectl("describe", "ddpjob", "j", "-n", namespace.name)
    line = text.splitlines()[-1].split(maxsplit=2)
    assert line[:2] == ["Warning", "ProgramError"]
    assert "(x2 over " in line[2]
    assert line[2].endswith("ddpjob-operator  Rank 1 ended with exit code 1")


async def test_an_event_that_has_expired_is_created_again(
    namespace: Namespace, recorder: EventRecorder, job: Job, notices: list[Notice]
) -> None:
    notices.append(notice("again"))
    recorder.record(job, SOME, SOME)
    (first,) = await come_to(namespace, 1)
    uid = first["metadata"]["uid"]
    await namespace.client.delete(EVENTS, namespace.name, first["metadata"]["name"], uid=uid)
    recorder.record(job, SOME, SOME)
    (second,) = await come_to(namespace, 2)
    assert second["metadata"]["uid"] != uid


async def test_events_over_the_budget_are_dropped_except_for_the_end_of_the_job(
    namespace: Namespace, recorder: EventRecorder, job: Job, notices: list[Notice]
) -> None:
    for number in range(3 * BUDGET):
        notices[:] = [notice(f"attempt {number} failed")]
        recorder.record(job, SOME, SOME)
    notices[:] = [notice("the job has failed")]
    recorder.record(job, SOME, ENDED)
    found = await come_to(namespace, *[1] * (BUDGET + 1))
    assert "the job has failed" in {event["message"] for event in found}
    recorder.record(job, ENDED, ENDED)
    other = job_of(await namespace.apply("other"))
    recorder.record(other, SOME, SOME)  # Events are written in order: with its Event all of the first job's are there.
    found = await come_to(namespace, *[1] * (BUDGET + 2))
    assert [event["involvedObject"]["name"] for event in found].count("other") == 1


async def test_another_job_of_the_same_name_has_a_budget_of_its_own(
    namespace: Namespace, recorder: EventRecorder, job: Job, notices: list[Notice]
) -> None:
    for number in range(2 * BUDGET):
        notices[:] = [notice(f"attempt {number} failed")]
        recorder.record(job, SOME, SOME)
    await come_to(namespace, *[1] * BUDGET)
    await namespace.delete_job("j")
    again = job_of(await namespace.apply("j"))
    notices[:] = [notice("attempt 1 failed")]
    recorder.record(again, SOME, SOME)
    found = await come_to(namespace, *[1] * (BUDGET + 1))
    assert [event["message"] for event in found if event["involvedObject"]["uid"] == again.uid] == ["attempt 1 failed"]


async def test_a_defect_in_the_messages_does_not_fail_the_reconcile(
    recorder: EventRecorder, job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_before: DDPJobStatus, _after: DDPJobStatus) -> tuple[Notice, ...]:
        raise KeyError("x")

    monkeypatch.setattr(module, "events_between", fail)
    recorder.record(job, SOME, SOME)
    assert "a defect of the operator" in caplog.text
