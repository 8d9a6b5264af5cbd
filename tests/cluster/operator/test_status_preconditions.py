"""What the writer of statuses needs of a real API server: preconditions, and a schema that keeps what is reported."""

from typing import Any

import pytest

from ddpjob_operator.api.names import Phase
from ddpjob_operator.api.status import DDPJobStatus, Progress
from ddpjob_operator.core.model import Body
from ddpjob_operator.kube.cache.store import KnownJob
from ddpjob_operator.kube.engine.event_recorder import EventRecorder
from ddpjob_operator.kube.engine.job_memory import JobMemories
from ddpjob_operator.kube.engine.status_writer import StatusWriter
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ConflictError, NotFoundError
from support.engine import new_store
from support.operator_cluster import Namespace


class Writing:
    """A job, a store that knows it, and a writer."""

    def __init__(self, client: Client, namespace: Namespace, body: Body) -> None:
        self.namespace = namespace
        self.store = new_store()
        self.store.jobs.put(body)
        memories = JobMemories()
        recorder = EventRecorder(client, "test", memories)  # not running, so it writes nothing
        self.writer = StatusWriter(client, self.store, recorder, memories)

    @property
    def known(self) -> KnownJob:
        known = self.store.job((self.namespace.name, "j"))
        assert known is not None
        return known

    async def write(self, **changes: Any) -> float | None:
        return await self.writer.write(self.known, self.known.job.status.model_copy(update=changes))


@pytest.fixture
async def writing(client: Client, namespace: Namespace) -> Writing:
    return Writing(client, namespace, await namespace.apply("j"))


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


async def test_metrics_are_stored_and_one_that_is_no_longer_reported_is_removed(writing: Writing) -> None:
    named = {"accuracy": 99.72, "val/top-5.acc": 100.0}
    await writing.write(progress=Progress(step=1, metrics=named, headline="accuracy 99.72 %"), phase=Phase.RUNNING)
    stored = (await writing.namespace.status("j"))["progress"]
    assert stored == {"step": 1, "metrics": named, "headline": "accuracy 99.72 %"}
    await writing.write(progress=Progress(step=2, metrics={"accuracy": 99.8}), phase=Phase.SUCCEEDED)
    assert (await writing.namespace.status("j"))["progress"] == {"step": 2, "metrics": {"accuracy": 99.8}}
