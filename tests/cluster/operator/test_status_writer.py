"""Which fields of a status are written, when, and what a late event of the watch changes."""

from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client import REGISTRY

from ddpjob_operator.api.names import Phase
from ddpjob_operator.api.status import Condition, DDPJobStatus, Progress
from ddpjob_operator.core.model import Body
from ddpjob_operator.kube.cache.store import KnownJob, Store
from ddpjob_operator.kube.engine import status_writer
from ddpjob_operator.kube.engine.event_recorder import EventRecorder
from ddpjob_operator.kube.engine.status_writer import StatusWriter
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ConflictError, NotFoundError, UnavailableError
from ddpjob_operator.transport.resources import Resource
from support.operator_cluster import Namespace


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
            raise UnavailableError("patch ddpjobs", "the connection ended")
        return answer


class Writing:
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
async def writing(client: Client, namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> Writing:
    """With times that no test reaches, however slow the machine is."""
    assert (status_writer.TICK_SECONDS, status_writer.DETAILS_SECONDS) == (10, 1)
    monkeypatch.setattr(status_writer, "TICK_SECONDS", 10_000.0)
    monkeypatch.setattr(status_writer, "DETAILS_SECONDS", 1000.0)
    return Writing(client, namespace, await namespace.apply("j"))


async def test_an_equal_status_is_not_written(writing: Writing) -> None:
    await writing.write(phase=Phase.PENDING)
    await writing.write()
    await writing.write(phase=Phase.PENDING)
    assert len(writing.client.patches) == 1


async def test_only_changed_fields_are_written_and_missing_ones_removed(writing: Writing) -> None:
    await writing.write(phase=Phase.PENDING, message="one", ready="0/2")
    await writing.write(phase=Phase.RUNNING, message=None)
    assert writing.client.patches[1] == {"phase": "Running", "message": None}
    status = await writing.namespace.status("j")
    assert (status["phase"], status["ready"], status["attempt"]) == ("Running", "0/2", 1)
    assert "message" not in status


async def test_a_written_status_is_in_the_cache_at_once_and_a_late_event_does_not_replace_it(writing: Writing) -> None:
    await writing.write(attempt=2)
    writing.store.jobs.put(writing.first_body)  # kopf delivers what was before.
    assert writing.known.job.status.attempt == 2


async def test_a_status_is_not_written_over_a_version_that_was_not_observed(writing: Writing) -> None:
    seen = writing.known
    await writing.namespace.edit("j", suspend=True)
    with pytest.raises(ConflictError):
        await writing.writer.write(seen, DDPJobStatus(attempt=2))
    spec = writing.known.job.spec
    assert spec is not None
    assert spec.suspend  # It was read again for the next pass.
    await writing.write(attempt=2)
    assert (await writing.namespace.status("j"))["attempt"] == 2


async def test_a_job_that_was_deleted_and_applied_again_inherits_nothing(writing: Writing) -> None:
    await writing.namespace.delete_job("j")
    with pytest.raises(NotFoundError):
        await writing.write(attempt=7)
    await writing.namespace.apply("j")
    with pytest.raises(ConflictError):
        await writing.write(attempt=7)
    assert await writing.namespace.status("j") == {}


async def test_progress_is_written_at_most_every_ten_seconds_and_changes_at_once(writing: Writing) -> None:
    await writing.write(phase=Phase.RUNNING)
    assert await writing.write(progress=Progress(step=1)) is None
    wait_seconds = await writing.write(progress=Progress(step=2), ready="2/2")
    assert wait_seconds is not None
    assert 9000 < wait_seconds <= 10_000
    assert (await writing.namespace.status("j"))["progress"] == {"step": 1}
    assert await writing.write(progress=Progress(step=3), phase=Phase.SUCCEEDED) is None
    assert (await writing.namespace.status("j"))["progress"] == {"step": 3}


async def test_metrics_are_stored_and_one_that_is_no_longer_reported_is_removed(writing: Writing) -> None:
    named = {"accuracy": 99.72, "val/top-5.acc": 100.0}
    await writing.write(progress=Progress(step=1, metrics=named, headline="accuracy 99.72 %"), phase=Phase.RUNNING)
    stored = (await writing.namespace.status("j"))["progress"]
    assert stored == {"step": 1, "metrics": named, "headline": "accuracy 99.72 %"}
    await writing.write(progress=Progress(step=2, metrics={"accuracy": 99.8}), phase=Phase.SUCCEEDED)
    assert (await writing.namespace.status("j"))["progress"] == {"step": 2, "metrics": {"accuracy": 99.8}}


async def test_progress_is_written_when_the_interval_is_over(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    await writing.write(ready="0/2")
    assert await writing.write(ready="1/2")
    monkeypatch.setattr(status_writer, "TICK_SECONDS", 0.0)
    assert await writing.write(ready="1/2") is None
    assert (await writing.namespace.status("j"))["ready"] == "1/2"


async def test_details_are_written_at_most_once_a_second(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    await writing.write(phase=Phase.RESTARTING, message="waiting for 3 pods")
    wait_seconds = await writing.write(message="waiting for 2 pods", reason="Stopping", ready="1/3")
    assert wait_seconds is not None
    assert 0 < wait_seconds <= 1000
    assert await writing.write(message="waiting for 1 pod", attempt=2) is None
    monkeypatch.setattr(status_writer, "DETAILS_SECONDS", 0.0)
    assert await writing.write(message="waiting for none") is None
    assert (await writing.namespace.status("j"))["message"] == "waiting for none"


async def test_right_after_pods_were_created_details_wait_and_events_do_not(writing: Writing) -> None:
    details = DDPJobStatus(phase=Phase.PENDING, message="2 of 2 pods do not exist yet")
    wait_seconds = await writing.writer.write(writing.known, details, just_created=True)
    assert wait_seconds is not None
    assert 0 < wait_seconds <= 1000
    assert await writing.namespace.status("j") == {}
    assert await writing.writer.write(writing.known, DDPJobStatus(attempt=2), just_created=True) is None
    assert (await writing.namespace.status("j"))["attempt"] == 2


async def test_a_job_that_finished_is_measured_once_even_if_the_answer_is_lost(writing: Writing) -> None:
    def finished() -> float:
        labels = {"outcome": "failed", "reason": "ProgramError"}
        return REGISTRY.get_sample_value("ddpjob_jobs_finished_total", labels) or 0.0

    before, key = finished(), (writing.namespace.name, "j")
    end = Condition(type="Failed", status="True", reason="ProgramError", last_transition_time="2027-01-15T08:00:00Z")
    writing.client.loses_answers = True
    with pytest.raises(UnavailableError):
        await writing.write(reason="ProgramError", conditions=[end])
    assert finished() == before
    await writing.writer.settle(key)
    await writing.writer.settle(key)
    assert finished() == before + 1

    writing.client.loses_answers = False
    another_leader = StatusWriter(writing.client, writing.store, EventRecorder(writing.client, "test"))  # type: ignore[arg-type]  # as above
    await another_leader.write(writing.known, writing.known.job.status.model_copy(update={"observed_generation": 1}))
    assert finished() == before + 1


class StatusOfANewerRelease(DDPJobStatus):
    nodes_seen: int = 1


async def test_a_field_that_the_crd_does_not_have_is_reported_once(
    writing: Writing, caplog: pytest.LogCaptureFixture
) -> None:
    for attempt in (2, 3):
        await writing.writer.write(writing.known, StatusOfANewerRelease(attempt=attempt))
        assert writing.writer.dropped_fields == {"nodesSeen"}
    assert caplog.text.count("older than this operator: nodesSeen. ") == 1
    assert (await writing.namespace.status("j"))["attempt"] == 3
