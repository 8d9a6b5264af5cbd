"""What is written of a status, when, and what a late event makes of it."""

from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client import REGISTRY

from ddpjob_operator.api.names import Phase
from ddpjob_operator.api.status import Condition, DDPJobStatus, Progress
from ddpjob_operator.core.model import Body
from ddpjob_operator.kube.cache.store import KnownJob, Store
from ddpjob_operator.kube.engine.event_recorder import EventRecorder
from ddpjob_operator.kube.engine.status_writer import StatusWriter
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ConflictError, NotFoundError, UnavailableError
from ddpjob_operator.transport.resources import Resource
from operator_cluster import Namespace


class Recording:
    """A client that remembers the patches it sends."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.patches: list[Mapping[str, Any]] = []
        self.loses_answers = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def merge_patch(self, resource: Resource, namespace: str, name: str, patch: Body, **rest: Any) -> Body:
        self.patches.append(patch["status"])
        answer = await self._client.merge_patch(resource, namespace, name, patch, **rest)
        if self.loses_answers:
            raise UnavailableError("the connection ended")
        return answer


class Desk:
    """A job, a store that knows it, and a writer."""

    def __init__(self, client: Client, namespace: Namespace, body: Body) -> None:
        self.namespace, self.first_body = namespace, body
        self.client = Recording(client)
        self.store = Store(lambda _, **__: None, lambda *_: None)
        self.store.jobs.put(body)
        recorder = EventRecorder(client, "test")  # not running, so it writes nothing
        self.writer = StatusWriter(self.client, self.store, recorder)  # type: ignore[arg-type]  # it does what a Client does

    @property
    def known(self) -> KnownJob:
        known = self.store.job((self.namespace.name, "j"))
        assert known is not None
        return known

    async def write(self, **changes: Any) -> float | None:
        return await self.writer.write(self.known, self.known.job.status.model_copy(update=changes))


@pytest.fixture
async def desk(client: Client, namespace: Namespace) -> Desk:
    return Desk(client, namespace, await namespace.apply("j"))


async def test_an_equal_status_is_not_written(desk: Desk) -> None:
    await desk.write(phase=Phase.PENDING)
    await desk.write()
    await desk.write(phase=Phase.PENDING)
    assert len(desk.client.patches) == 1


async def test_only_what_changed_is_written_and_what_went_is_removed(desk: Desk) -> None:
    await desk.write(phase=Phase.PENDING, message="one", ready="0/2")
    await desk.write(phase=Phase.RUNNING, message=None)
    assert desk.client.patches[1] == {"phase": "Running", "message": None}
    status = await desk.namespace.status("j")
    assert (status["phase"], status["ready"], status["attempt"]) == ("Running", "0/2", 1)
    assert "message" not in status


async def test_what_was_written_is_known_at_once_and_no_late_event_undoes_it(desk: Desk) -> None:
    await desk.write(attempt=2)
    desk.store.jobs.put(desk.first_body)  # kopf delivers what was before.
    assert desk.known.job.status.attempt == 2


async def test_nothing_is_written_over_a_version_that_was_not_seen(desk: Desk) -> None:
    seen = desk.known
    await desk.namespace.edit("j", suspend=True)
    with pytest.raises(ConflictError):
        await desk.writer.write(seen, DDPJobStatus(attempt=2))
    spec = desk.known.job.spec
    assert spec is not None
    assert spec.suspend  # It was read again for the next pass.
    await desk.write(attempt=2)
    assert (await desk.namespace.status("j"))["attempt"] == 2


async def test_a_job_that_was_deleted_and_applied_again_inherits_nothing(desk: Desk) -> None:
    await desk.namespace.delete_job("j")
    with pytest.raises(NotFoundError):
        await desk.write(attempt=7)
    await desk.namespace.apply("j")
    with pytest.raises(ConflictError):
        await desk.write(attempt=7)
    assert await desk.namespace.status("j") == {}


async def test_ticks_are_written_at_most_every_ten_seconds_and_changes_at_once(desk: Desk) -> None:
    await desk.write(phase=Phase.RUNNING)
    assert await desk.write(progress=Progress(step=1)) is None
    wait_seconds = await desk.write(progress=Progress(step=2), ready="2/2")
    assert wait_seconds is not None
    assert 9 < wait_seconds <= 10
    assert (await desk.namespace.status("j"))["progress"] == {"step": 1}
    assert await desk.write(progress=Progress(step=3), phase=Phase.SUCCEEDED) is None
    assert (await desk.namespace.status("j"))["progress"] == {"step": 3}


async def test_a_tick_goes_out_when_its_time_has_come(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await desk.write(ready="0/2")
    assert await desk.write(ready="1/2")
    monkeypatch.setattr("ddpjob_operator.kube.engine.status_writer.TICK_SECONDS", 0.0)
    assert await desk.write(ready="1/2") is None
    assert (await desk.namespace.status("j"))["ready"] == "1/2"


async def test_details_of_the_start_are_written_at_most_once_a_second(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.write(phase=Phase.RESTARTING, message="waiting for 3 pods")
    wait_seconds = await desk.write(message="waiting for 2 pods", reason="Stopping", ready="1/3")
    assert wait_seconds is not None
    assert 0 < wait_seconds <= 1
    assert await desk.write(message="waiting for 1 pod", attempt=2) is None
    monkeypatch.setattr("ddpjob_operator.kube.engine.status_writer.DETAILS_SECONDS", 0.0)
    assert await desk.write(message="waiting for none") is None
    assert (await desk.namespace.status("j"))["message"] == "waiting for none"


async def test_after_the_creation_of_pods_details_wait_and_what_happened_does_not(desk: Desk) -> None:
    details = DDPJobStatus(phase=Phase.PENDING, message="2 of 2 pods do not exist yet")
    wait_seconds = await desk.writer.write(desk.known, details, just_created=True)
    assert wait_seconds is not None
    assert 0 < wait_seconds <= 1
    assert await desk.namespace.status("j") == {}
    assert await desk.writer.write(desk.known, DDPJobStatus(attempt=2), just_created=True) is None
    assert (await desk.namespace.status("j"))["attempt"] == 2


async def test_a_job_that_finished_is_measured_once_even_if_the_answer_is_lost(desk: Desk) -> None:
    def finished() -> float:
        labels = {"outcome": "failed", "reason": "ProgramError"}
        return REGISTRY.get_sample_value("ddpjob_jobs_finished_total", labels) or 0.0

    before, key = finished(), (desk.namespace.name, "j")
    end = Condition(type="Failed", status="True", reason="ProgramError", last_transition_time="2027-01-15T08:00:00Z")
    desk.client.loses_answers = True
    with pytest.raises(UnavailableError):
        await desk.write(reason="ProgramError", conditions=[end])
    assert finished() == before
    await desk.writer.settle(key)
    await desk.writer.settle(key)
    assert finished() == before + 1

    desk.client.loses_answers = False
    another_leader = StatusWriter(desk.client, desk.store, EventRecorder(desk.client, "test"))  # type: ignore[arg-type]  # as above
    await another_leader.write(desk.known, desk.known.job.status.model_copy(update={"observed_generation": 1}))
    assert finished() == before + 1
