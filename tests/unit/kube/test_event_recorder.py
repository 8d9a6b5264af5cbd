"""The recorder of Events: how many a job may have. tests/cluster/operator/test_describe.py shows them as kubectl does."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import cast

import pytest

from ddpjob_operator.api.names import ConditionType
from ddpjob_operator.api.status import Condition, DDPJobStatus
from ddpjob_operator.core.events import Notice
from ddpjob_operator.kube.engine import event_recorder as module
from ddpjob_operator.kube.engine.event_account import BUDGET
from ddpjob_operator.kube.engine.event_recorder import EventRecorder
from ddpjob_operator.kube.engine.job_memory import JobMemories
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.resources import EVENTS
from support.fake_server import FakeServer
from support.lookup_jobs import JOB

pytestmark = pytest.mark.usefixtures("virtual_clocks")
SOME = DDPJobStatus()
ENDED = DDPJobStatus(
    conditions=[
        Condition(type=ConditionType.FAILED, status="True", reason="x", last_transition_time="2026-01-01T00:00:00Z")
    ]
)


@pytest.fixture
def notices(monkeypatch: pytest.MonkeyPatch) -> list[Notice]:
    """The Events that the next status leads to."""
    notices: list[Notice] = []
    monkeypatch.setattr(module, "events_between", lambda _before, _after: tuple(notices))
    return notices


@pytest.fixture
async def recorder(server: FakeServer) -> AsyncIterator[EventRecorder]:
    """The recorder, running."""
    recorder = EventRecorder(cast("Client", server), "operator-0", JobMemories())
    working = asyncio.create_task(recorder.run())
    yield recorder
    working.cancel()


@pytest.fixture
async def server() -> FakeServer:
    """The API server."""
    return FakeServer()


def notice(message: str) -> Notice:
    return Notice(type="Warning", reason="ProgramError", message=message)


async def counts(server: FakeServer) -> dict[str, int]:
    """How often each message is shown, once all that was recorded is written."""
    await asyncio.sleep(1)
    return {event["message"]: event["count"] for event in server.all(EVENTS)}


async def test_a_repetition_raises_the_count(
    server: FakeServer, recorder: EventRecorder, notices: list[Notice]
) -> None:
    notices.append(notice("again"))
    recorder.record(JOB, SOME, SOME)
    assert await counts(server) == {"again": 1}
    recorder.record(JOB, SOME, SOME)
    assert await counts(server) == {"again": 2}


async def test_an_event_that_has_expired_is_created_again(
    server: FakeServer, recorder: EventRecorder, notices: list[Notice]
) -> None:
    notices.append(notice("again"))
    recorder.record(JOB, SOME, SOME)
    assert await counts(server) == {"again": 1}
    (name,) = server.names(EVENTS)
    server.remove(EVENTS, name)
    recorder.record(JOB, SOME, SOME)
    assert await counts(server) == {"again": 2}
    assert server.num("create") == 2


async def test_events_over_the_budget_are_dropped_except_for_the_end_of_the_job(
    server: FakeServer, recorder: EventRecorder, notices: list[Notice]
) -> None:
    for number in range(3 * BUDGET):
        notices[:] = [notice(f"attempt {number} failed")]
        recorder.record(JOB, SOME, SOME)
    notices[:] = [notice("the job has failed")]
    recorder.record(JOB, SOME, ENDED)
    written = await counts(server)
    assert len(written) == BUDGET + 1
    assert "the job has failed" in written
    recorder.record(JOB, ENDED, ENDED)
    recorder.record(replace(JOB, name="other"), SOME, SOME)
    await counts(server)
    assert len(server.names(EVENTS)) == BUDGET + 2


async def test_a_later_job_of_the_same_name_has_a_budget_of_its_own(
    server: FakeServer, recorder: EventRecorder, notices: list[Notice]
) -> None:
    for number in range(2 * BUDGET):
        notices[:] = [notice(f"attempt {number} failed")]
        recorder.record(JOB, SOME, SOME)
    notices[:] = [notice("attempt 1 failed")]
    recorder.record(replace(JOB, uid="again"), SOME, SOME)
    await counts(server)
    of_the_second = [event for event in server.all(EVENTS) if event["involvedObject"]["uid"] == "again"]
    assert [event["message"] for event in of_the_second] == ["attempt 1 failed"]


async def test_a_defect_in_the_messages_does_not_fail_the_reconcile(
    recorder: EventRecorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_before: DDPJobStatus, _after: DDPJobStatus) -> tuple[Notice, ...]:
        raise KeyError("x")

    monkeypatch.setattr(module, "events_between", fail)
    recorder.record(JOB, SOME, SOME)
    assert "a defect of the operator" in caplog.text
