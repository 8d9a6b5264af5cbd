"""What a write of a status names, and how many writes a job costs that meets no trouble. Progress lines come on top."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddpjob_operator.api.names import ConditionType, Phase, Reason
from ddpjob_operator.api.status import Condition, DDPJobStatus, Failure, Progress
from ddpjob_operator.core.actions import CreatePod
from ddpjob_operator.core.model import NO_LOG, Body, Pod
from ddpjob_operator.core.plan import plan
from ddpjob_operator.kube.cache.store import KnownJob
from ddpjob_operator.kube.engine import status_writer
from ddpjob_operator.kube.engine.status_writer import MAX_PARALLEL_STARTS, StatusWriter, merge_patch_between
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.resources import DDPJOBS
from simulation.api_server import merged
from support.builders import NOW, ended, job, observed, pod
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
        self.writer = StatusWriter(client, store, SimpleNamespace(record=lambda *_: None))  # type: ignore[arg-type]  # they do what is called

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
    writer = StatusWriter(cast("Client", server), store, SimpleNamespace(record=lambda *_: None))  # type: ignore[arg-type]  # they do what is called
    created = Condition(
        type=ConditionType.CREATED, status="True", reason="x", last_transition_time="2027-01-15T08:00:00Z"
    )
    starts = DDPJobStatus(phase=Phase.PENDING, reason=Reason.STARTING, conditions=[created])

    def write(name: str, status: DDPJobStatus, namespace: str = JOB.namespace) -> asyncio.Task[float | None]:
        known = KnownJob(job=replace(JOB, name=name, namespace=namespace), status={})
        server.put(DDPJOBS, {"metadata": {"name": name}}, namespace)
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
