"""The writer of statuses: what a write names, when it is made, and how many writes a job costs that meets no trouble."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from ddpjob_operator.api.names import ConditionType, Phase, Reason
from ddpjob_operator.api.status import Condition, DDPJobStatus, Failure, Progress
from ddpjob_operator.core.actions import CreatePod
from ddpjob_operator.core.model import NO_LOG, Body, Pod
from ddpjob_operator.core.plan import plan
from ddpjob_operator.kube.cache.store import KnownJob
from ddpjob_operator.kube.engine import status_writer
from ddpjob_operator.kube.engine.event_recorder import EventRecorder
from ddpjob_operator.kube.engine.job_memory import JobMemories
from ddpjob_operator.kube.engine.status_writer import (
    DETAILS_SECONDS,
    MAX_PARALLEL_STARTS,
    TICK_SECONDS,
    StatusWriter,
    merge_patch_between,
)
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import UnavailableError
from ddpjob_operator.transport.resources import DDPJOBS
from simulation.api_server import merged
from simulation.virtual_time import OperatorClocks
from support.builders import NOW, ended, job, observed, pod
from support.engine import new_store
from support.fake_server import FakeServer


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({}, {}, {}),
        ({"a": 1}, {"a": 1}, {}),
        ({"a": 1}, {"a": 2}, {"a": 2}),
        ({"a": 1, "b": 2}, {"b": 2}, {"a": None}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"x": 1, "y": 3}}, {"a": {"y": 3}}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"x": 1}}, {"a": {"y": None}}),
        ({"a": {"x": 1}}, {"a": {}}, {"a": {"x": None}}),
        ({"a": [1, 2]}, {"a": [2]}, {"a": [2]}),
        ({"a": 1}, {"a": {"x": 1}}, {"a": {"x": 1}}),
        ({}, {"a": {}}, {"a": {}}),
    ],
)
def test_only_what_differs_is_named(old: dict[str, Any], new: dict[str, Any], patch: dict[str, Any]) -> None:
    assert merge_patch_between(old, new) == patch


_leaves = st.sampled_from([0, 1, "x", [1], [1, 2]])
_inner = st.dictionaries(st.sampled_from("ab"), _leaves, max_size=2)
_objects = st.dictionaries(st.sampled_from("ab"), _leaves | _inner, max_size=2)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # a busy machine is no failure
@given(old=_objects, new=_objects)
def test_applied_to_the_old_it_gives_the_new(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert merged(old, merge_patch_between(old, new)) == new


def test_a_field_that_became_none_is_removed() -> None:
    old = DDPJobStatus(ready="1/2", progress=Progress(step=1, loss=0.5)).as_json()
    new = DDPJobStatus(progress=Progress(step=2)).as_json()
    assert merge_patch_between(old, new) == {"ready": None, "progress": {"step": 2, "loss": None}}


JOB = job(nodes=4)


class Life:
    """A job, what the operator writes of it, and the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.job, self.now, self.pods = JOB, NOW, tuple[Pod, ...]()
        self.written = list[tuple[float, DDPJobStatus]]()
        self.due: float | None = None
        monkeypatch.setattr(status_writer, "time", SimpleNamespace(monotonic=lambda: self.now))
        client: Any = SimpleNamespace(merge_patch=self._merge_patch)
        store: Any = SimpleNamespace(jobs=SimpleNamespace(put_answer=lambda _: None))
        self.writer = StatusWriter(client, store, SimpleNamespace(record=lambda *_: None), JobMemories())  # type: ignore[arg-type]  # they do what is called

    async def _merge_patch(self, *_: Any, **__: Any) -> Body:
        return {}

    async def sees(self, seconds: float, *pods: Pod) -> None:
        """Pods as they are so long after the job's creation, after everything that was due before."""
        while self.due is not None and self.due < NOW + seconds:
            self.now = self.due
            await self._reconcile()
        self.now, self.pods = NOW + seconds, pods
        await self._reconcile()

    async def _reconcile(self) -> None:
        seen = observed(self.job, *self.pods, logs={p.uid: NO_LOG for p in self.pods})
        made = plan(seen, self.now)
        creates = any(isinstance(action, CreatePod) for action in made.actions)
        known = KnownJob(job=self.job, status={})
        wait_seconds = await self.writer.write(known, made.status, just_created=creates)
        self.due = None if wait_seconds is None else self.now + wait_seconds
        if wait_seconds is None and made.status != self.job.status:
            self.job = replace(self.job, status=made.status)
            self.written.append((self.now - NOW, made.status))


def pending(rank: int) -> Pod:
    return pod(JOB, rank, phase="Pending", running=False, node=None)


def placed(rank: int) -> Pod:
    return pod(JOB, rank, phase="Pending", running=False)


STARTS = {
    "pods run within a second": (0.1, 0.2, 0.5),
    "in two seconds": (0.3, 0.8, 2.0),
    "in five seconds": (0.5, 2.5, 5.0),
    "images are pulled for a while": (0.3, 0.5, 19.0),
    "a storm of jobs": (8.0, 14.0, 22.0),
}


@pytest.mark.parametrize(("created", "scheduled", "running"), STARTS.values(), ids=STARTS.keys())
async def test_a_good_life_has_four_status_writes_at_most(
    created: float, scheduled: float, running: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    life, ranks = Life(monkeypatch), range(4)
    await life.sees(0)
    for rank in ranks:  # one after the other, as the watch shows them
        await life.sees(created * (rank + 1) / 4, *map(pending, range(rank + 1)))
    for rank in ranks:
        at = created + (scheduled - created) * (rank + 1) / 4
        await life.sees(at, *map(placed, range(rank + 1)), *map(pending, range(rank + 1, 4)))
    for rank in ranks:
        at = scheduled + (running - scheduled) * (rank + 1) / 4
        await life.sees(at, *(pod(JOB, r) for r in range(rank + 1)), *map(placed, range(rank + 1, 4)))
    for rank in ranks:
        done = [ended(JOB, r, ended_seen=NOW + 40) for r in range(rank + 1)]
        await life.sees(40 + rank / 10, *done, *(pod(JOB, r) for r in range(rank + 1, 4)))

    last = life.written[-1][1]
    assert (last.phase, last.condition(ConditionType.CREATED)) == (Phase.SUCCEEDED, True)
    assert len(life.written) <= 4


async def test_reports_of_good_starts_hold_up_no_other_status_and_no_other_namespace() -> None:
    server = FakeServer()
    server.may_answer.clear()
    store: Any = SimpleNamespace(jobs=SimpleNamespace(put_answer=lambda _: None))
    writer = StatusWriter(cast("Client", server), store, SimpleNamespace(record=lambda *_: None), JobMemories())  # type: ignore[arg-type]  # they do what is called
    created = Condition(
        type=ConditionType.CREATED, status="True", reason="x", last_transition_time="2027-01-15T08:00:00Z"
    )
    starts = DDPJobStatus(phase=Phase.PENDING, reason=Reason.STARTING, conditions=[created])

    def write(name: str, status: DDPJobStatus, namespace: str = JOB.namespace) -> asyncio.Task[float | None]:
        version = server.put(DDPJOBS, {"metadata": {"name": name}}, namespace)["metadata"]["resourceVersion"]
        known = KnownJob(job=replace(JOB, name=name, namespace=namespace, resource_version=version), status={})
        return asyncio.create_task(writer.write(known, status))

    writes = [write(f"start-{number}", starts) for number in range(5 * MAX_PARALLEL_STARTS)]
    writes.append(write("runs", starts.model_copy(update={"phase": Phase.RUNNING, "reason": Reason.RUNNING})))
    writes.append(write("starts-again", starts.model_copy(update={"attempt": 2})))
    failure = Failure(attempt=1, reason="x", message="x", time="2027-01-15T08:00:00Z")
    writes.append(write("failed-before", starts.model_copy(update={"failure": failure})))
    writes.append(write("neighbour", starts, "elsewhere"))
    await asyncio.sleep(0.01)
    written = [request.name for request in server.requests]
    assert len([name for name in written if name.startswith("start-")]) == MAX_PARALLEL_STARTS
    assert {"runs", "starts-again", "failed-before", "neighbour"} <= set(written)
    server.may_answer.set()
    await asyncio.gather(*writes)
    assert len(server.requests) == len(writes)


class Writing:
    """A job on an API server, a store that knows it, and a writer."""

    def __init__(self) -> None:
        self.server = FakeServer()
        self.first_body = self.server.put(DDPJOBS, {"metadata": {"name": "j", "uid": "u"}, "spec": {"command": ["x"]}})
        self.store = new_store()
        self.store.jobs.put(self.first_body)
        self.writer = self.new_writer()

    def new_writer(self) -> StatusWriter:
        client = cast("Client", self.server)
        memories = JobMemories()
        return StatusWriter(
            client, self.store, EventRecorder(client, "test", memories), memories
        )  # not running, so it writes nothing

    @property
    def known(self) -> KnownJob:
        known = self.store.job(("ns", "j"))
        assert known is not None
        return known

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.server.find(DDPJOBS, "j").get("status", {})
        return status

    async def write(self, **changes: Any) -> float | None:
        return await self.writer.write(self.known, self.known.job.status.model_copy(update=changes))


@pytest.fixture
async def writing(virtual_clocks: OperatorClocks) -> Writing:  # noqa: ARG001 the writer's clock is the loop's
    return Writing()


async def test_an_equal_status_is_not_written(writing: Writing) -> None:
    await writing.write(phase=Phase.PENDING)
    await writing.write()
    await writing.write(phase=Phase.PENDING)
    assert len(writing.server.patches) == 1


async def test_only_changed_fields_are_written_and_missing_ones_removed(writing: Writing) -> None:
    await writing.write(phase=Phase.PENDING, message="one", ready="0/2")
    await writing.write(phase=Phase.RUNNING, message=None)
    assert writing.server.patches[1]["status"] == {"phase": "Running", "message": None}
    status = writing.status
    assert (status["phase"], status["ready"], status["attempt"]) == ("Running", "0/2", 1)
    assert "message" not in status


async def test_a_written_status_is_in_the_cache_at_once_and_a_late_event_does_not_replace_it(writing: Writing) -> None:
    await writing.write(attempt=2)
    writing.store.jobs.put(writing.first_body)  # kopf delivers what was before
    assert writing.known.job.status.attempt == 2


async def test_progress_is_written_at_most_every_ten_seconds_and_changes_at_once(writing: Writing) -> None:
    await writing.write(phase=Phase.RUNNING)
    assert await writing.write(progress=Progress(step=1)) is None
    wait_seconds = await writing.write(progress=Progress(step=2), ready="2/2")
    assert wait_seconds is not None
    assert wait_seconds == TICK_SECONDS
    assert writing.status["progress"] == {"step": 1}
    assert await writing.write(progress=Progress(step=3), phase=Phase.SUCCEEDED) is None
    assert writing.status["progress"] == {"step": 3}


async def test_progress_is_written_when_the_interval_is_over(writing: Writing) -> None:
    await writing.write(ready="0/2")
    assert await writing.write(ready="1/2")
    await asyncio.sleep(TICK_SECONDS)
    assert await writing.write(ready="1/2") is None
    assert writing.status["ready"] == "1/2"


async def test_details_are_written_at_most_once_a_second(writing: Writing) -> None:
    await writing.write(phase=Phase.RESTARTING, message="waiting for 3 pods")
    wait_seconds = await writing.write(message="waiting for 2 pods", reason="Stopping", ready="1/3")
    assert wait_seconds is not None
    assert wait_seconds == DETAILS_SECONDS
    assert await writing.write(message="waiting for 1 pod", attempt=2) is None
    await asyncio.sleep(DETAILS_SECONDS)
    assert await writing.write(message="waiting for none") is None
    assert writing.status["message"] == "waiting for none"


async def test_right_after_pods_were_created_details_wait_and_events_do_not(writing: Writing) -> None:
    details = DDPJobStatus(phase=Phase.PENDING, message="2 of 2 pods do not exist yet")
    wait_seconds = await writing.writer.write(writing.known, details, just_created=True)
    assert wait_seconds is not None
    assert wait_seconds == DETAILS_SECONDS
    assert writing.status == {}
    assert await writing.writer.write(writing.known, DDPJobStatus(attempt=2), just_created=True) is None
    assert writing.status["attempt"] == 2


async def test_a_job_that_finished_is_measured_once_even_if_the_answer_is_lost(writing: Writing) -> None:
    def finished() -> float:
        labels = {"outcome": "failed", "reason": "ProgramError"}
        return REGISTRY.get_sample_value("ddpjob_jobs_finished_total", labels) or 0.0

    before, key = finished(), ("ns", "j")
    end = Condition(type="Failed", status="True", reason="ProgramError", last_transition_time="2027-01-15T08:00:00Z")
    writing.server.loses_answers = True
    with pytest.raises(UnavailableError):
        await writing.write(reason="ProgramError", conditions=[end])
    assert finished() == before
    await writing.writer.settle(key)
    await writing.writer.settle(key)
    assert finished() == before + 1

    writing.server.loses_answers = False
    await writing.new_writer().write(
        writing.known, writing.known.job.status.model_copy(update={"observed_generation": 1})
    )
    assert finished() == before + 1


class StatusOfANewerRelease(DDPJobStatus):
    nodes_seen: int = 1


async def test_a_field_that_the_crd_does_not_have_is_reported_once(
    writing: Writing, caplog: pytest.LogCaptureFixture
) -> None:
    writing.server.drops = frozenset({"nodesSeen"})
    for attempt in (2, 3):
        await writing.writer.write(writing.known, StatusOfANewerRelease(attempt=attempt))
        assert writing.writer.dropped_fields == {"nodesSeen"}
    assert caplog.text.count("older than this operator: nodesSeen. ") == 1
    assert writing.status["attempt"] == 3
