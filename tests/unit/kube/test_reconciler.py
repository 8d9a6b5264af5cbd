"""What a reconcile does with refused requests, and what it remembers of a job of the same name.

The API server refuses what a test names; the real one is in tests/cluster/operator.
"""

import asyncio
import re
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddpjob_operator.api import names
from ddpjob_operator.api.names import contract
from ddpjob_operator.core.times import rfc3339
from ddpjob_operator.kube.engine.reconciler import CLOSE_AGAIN_SECONDS
from ddpjob_operator.scheduling.interface import Provider
from ddpjob_operator.scheduling.kueue import Kueue
from ddpjob_operator.scheduling.none import NO_PROVIDER
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import RejectedError
from ddpjob_operator.transport.resources import DDPJOBS, PODS, SERVICES
from support.engine import Engine, happens
from support.fake_server import FakeServer, Request

KEY = ("ns", "job")
DENIED = "ValidatingAdmissionPolicy 'keep' denied request: ask the team"


def refusing(verb: str, plural: str) -> Callable[[Request], RejectedError | None]:
    """Requests of this kind are refused."""

    def refuse(request: Request) -> RejectedError | None:
        is_meant = (request.verb, request.plural) == (verb, plural)
        return RejectedError(f"{verb} {plural} {request.name}", DENIED, status=403) if is_meant else None

    return refuse


def refusing_nothing(_: Request) -> None:
    """All requests are done."""


class Operator(Engine):
    """A reconciler with its caches, and its API server."""

    def __init__(self, provider: Provider = NO_PROVIDER) -> None:
        self.server = FakeServer()
        super().__init__(self.server, provider=provider)

    def apply(self, uid: str = "job-uid", *, nodes: int = 1, restart: Any = None, **status: Any) -> None:
        restart = restart or {"keepAttempts": 0}
        spec = {"nodes": nodes, "gpusPerNode": 0, "trainer": {"recipe": "digits"}, "restart": restart}
        metadata = {"name": "job", "uid": uid, "generation": 1}
        self.server.put(DDPJOBS, {"metadata": metadata, "spec": spec, "status": status})

    async def reconcile(self, times: int = 1) -> None:
        for _ in range(times):
            for cache in (self.store.jobs, self.store.pods, self.store.services):
                await cache.refresh(cast("Client", self.server), None)
            await self.reconciler.reconcile(KEY)

    def fail_pod(self, attempt: int) -> None:
        self.shows(f"job-{attempt}-0", "Failed", ended(1, "ValueError: boom"))

    def shows(self, name: str, phase: str, state: Any) -> None:
        pod = self.server.find(PODS, name)
        statuses = [{"name": names.MAIN_CONTAINER, "state": state}]
        spec = {**pod["spec"], "nodeName": f"node-of-{name}"}
        self.server.put(PODS, {**pod, "spec": spec, "status": {"phase": phase, "containerStatuses": statuses}})

    @property
    def status(self) -> Any:
        return self.server.find(DDPJOBS, "job")["status"]

    @property
    def pods(self) -> set[str]:
        return set(self.server.names(PODS))


@pytest.fixture
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statuses are written at once, and what was refused may be tried again at once."""
    monkeypatch.setattr("ddpjob_operator.kube.engine.status_writer.DETAILS_SECONDS", 0.0)
    monkeypatch.setattr("ddpjob_operator.kube.engine.status_writer.START_SECONDS", 0.0)
    monkeypatch.setattr("ddpjob_operator.kube.engine.refused.FIRST_RETRY_SECONDS", 0.0)
    monkeypatch.setattr("ddpjob_operator.core.failure.restart.FIRST_DELAY_SECONDS", 0.0)


async def with_a_failed_pod(refused: tuple[str, str], *, times: int) -> Operator:
    """The operator after so many reconciles since its job's pod failed, where one kind of request is refused."""
    operator = Operator()
    operator.apply()
    await operator.reconcile(2)
    assert operator.pods == {"job-1-0"}
    operator.fail_pod(1)
    operator.server.refuse = refusing(*refused)
    await operator.reconcile(times)
    return operator


@pytest.mark.usefixtures("no_delays")
async def test_evidence_that_may_not_be_deleted_does_not_hold_up_the_next_attempt() -> None:
    operator = await with_a_failed_pod(("delete", "pods"), times=3)

    assert operator.pods == {"job-1-0", "job-2-0"}
    assert f"the API server refuses to delete pod job-1-0: {DENIED}" in operator.status["message"]

    operator.server.refuse = refusing_nothing
    await operator.reconcile(3)
    assert operator.pods == {"job-2-0"}
    assert "refuses" not in operator.status["message"]


@pytest.mark.usefixtures("no_delays")
async def test_a_service_that_may_not_be_updated_is_named_in_the_status() -> None:
    operator = await with_a_failed_pod(("patch", "services"), times=3)

    assert "job-2-0" not in operator.pods  # its ranks would not find rank 0
    assert f"the API server refuses to update Service job-master: {DENIED}" in operator.status["message"]

    operator.server.refuse = refusing_nothing
    await operator.reconcile(3)
    assert "job-2-0" in operator.pods
    assert "refuses" not in operator.status["message"]


async def test_a_refused_deletion_is_retried_later_and_no_error_of_the_reconcile() -> None:
    operator = await with_a_failed_pod(("delete", "pods"), times=5)

    assert operator.server.num("delete", "job-1-0") <= 1
    assert operator.rejections.seconds_to_retry(KEY) > 0


@pytest.mark.usefixtures("no_delays")
async def test_a_finished_job_whose_time_to_live_has_passed_reports_that_it_may_not_be_deleted() -> None:
    operator = Operator()
    operator.apply(phase="Succeeded", message="all ranks succeeded", completionTime="2026-01-01T00:00:00Z")
    job = operator.server.find(DDPJOBS, "job")
    time = "2026-01-01T00:00:00Z"
    job["spec"]["ttlSecondsAfterFinished"] = 0
    job["status"]["conditions"] = [{"type": "Succeeded", "status": "True", "reason": "x", "lastTransitionTime": time}]
    operator.server.refuse = refusing("delete", "ddpjobs")
    await operator.reconcile(2)

    assert stalled(operator.status)["message"] == f"the API server refuses to delete DDPJob job: {DENIED}"
    assert operator.status["message"] == "all ranks succeeded"


async def test_pods_that_the_watch_shows_late_are_not_reported_as_missing() -> None:
    operator = Operator()
    operator.apply(nodes=2)
    await operator.reconcile()
    assert operator.pods == {"job-1-0", "job-1-1"}
    await operator.reconciler.reconcile(KEY)  # for another event, before the watch has shown the pods
    assert not operator.server.num("patch", "job")
    await operator.reconcile()
    assert [condition["type"] for condition in operator.status["conditions"] if condition["status"] == "True"] == [
        "Created"
    ]


async def test_a_job_that_was_applied_again_inherits_nothing_from_the_job_of_the_same_name() -> None:
    """Its DELETED and ADDED events came together, so that no reconcile saw the name without a job."""
    operator = Operator()
    operator.apply("first")
    operator.server.refuse = refusing("create", "pods")
    await operator.reconcile(2)
    assert operator.rejections.seconds_to_retry(KEY) > 0
    for _ in range(20):
        operator.queue.retry(KEY)

    operator.server.refuse = refusing_nothing
    operator.server.remove(SERVICES, "job-master")
    operator.apply("second")
    await operator.reconcile(2)
    assert operator.pods == {"job-1-0"}
    assert operator.rejections.seconds_to_retry(KEY) == 0
    assert operator.queue.retry(KEY) < 1


def ended(code: int, message: str) -> Any:
    return {"terminated": {"exitCode": code, "reason": "Error", "message": message}}


async def test_a_deletion_that_this_process_saw_before_it_recorded_a_failure_explains_the_failure_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operator = Operator()
    operator.apply(nodes=2)
    await operator.reconcile(2)
    for name in ("job-1-0", "job-1-1"):
        operator.shows(name, "Running", {"running": {}})
    await operator.reconcile(2)
    with monkeypatch.context() as earlier:  # the time of a record is cut to whole seconds
        earlier.setattr("ddpjob_operator.kube.cache.store.time", SimpleNamespace(time=lambda: time.time() - 5))
        deletion: Any = {"deletionTimestamp": rfc3339(time.time() + 60), "deletionGracePeriodSeconds": 60}
        operator.server.put(PODS, operator.server.find(PODS, "job-1-1"), **deletion)
        await operator.reconcile()
        operator.shows("job-1-0", "Failed", ended(contract.EXIT_PEER_LOST, f"rank 1{contract.TERMINATION_ECHO_SUFFIX}"))
        await operator.reconcile()
    assert (operator.status["attempt"], operator.status["failure"]["reason"]) == (2, "CollectiveError")

    operator.shows("job-1-1", "Failed", ended(143, "SIGTERM received"))
    await operator.reconcile()
    assert (operator.status["failure"]["reason"], operator.status["failure"]["rank"]) == ("PodDeleted", 1)


def stalled(status: Any) -> Any:
    (found,) = (condition for condition in status["conditions"] if condition["type"] == "Stalled")
    return found


def fail(*_: Any, **__: Any) -> Any:
    raise KeyError("\x1b[31mnodeName")


@pytest.mark.usefixtures("no_delays", "virtual_clocks")
@pytest.mark.parametrize("broken", ["kube.engine.reconciler.plan", "core.render.pods.PodManifest.render"])
async def test_a_defect_leaves_the_pods_alone_and_is_shown_until_it_is_gone(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    operator = Operator()
    operator.apply()
    worker = asyncio.create_task(operator.reconciler.work())
    with monkeypatch.context() as patched:
        patched.setattr(f"ddpjob_operator.{broken}", fail)
        await operator.store.jobs.refresh(cast("Client", operator.server), None)
        defect = "ns/job: reconcile failed by a defect of the operator"
        await happens(lambda: caplog.text.count(defect) >= 3)
        num_requests = len(operator.server.requests)
        await happens(lambda: caplog.text.count(defect) >= 4)
        assert len(operator.server.requests) == num_requests, "a retry writes nothing"
        assert stalled(operator.status)["reason"] == "OperatorDefect"
        assert "by a defect (KeyError in " in stalled(operator.status)["message"]
        assert "\x1b" not in stalled(operator.status)["message"]
        assert operator.status["phase"] == "Pending"
        assert operator.pods == set()
        assert "Traceback" in caplog.text
        delays = [float(text) for text in re.findall(r"retrying in ([\d.]+) s", caplog.text)]
        assert delays == sorted(delays), "later each time"
    operator.queue.add(KEY)
    await happens(lambda: bool(operator.pods) and stalled(operator.status)["status"] == "False")
    worker.cancel()


@pytest.mark.usefixtures("no_delays")
async def test_an_older_crd_that_drops_fields_of_the_status_is_reported_and_costs_no_restarts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ddpjob_operator.core.failure.restart.SHORT_SECONDS", 0.0)
    operator = Operator()
    operator.server.drops = frozenset({"replacedPods", "podReplacements", "inPlaceCounted", "replaced"})
    operator.apply(nodes=2, restart={"inPlace": True, "maxRestarts": 2})
    await operator.reconcile(2)
    for name in ("job-1-0", "job-1-1"):
        operator.shows(name, "Running", {"running": {}})
    await operator.reconcile(2)
    assert "older than this operator" in caplog.text
    assert "restarts.podReplacements" in caplog.text
    operator.shows("job-1-1", "Failed", {"terminated": {"exitCode": 137, "reason": "OOMKilled"}})
    await operator.reconcile(6)

    assert (operator.status["phase"], operator.status["attempt"]) == ("Restarting", 2)
    assert operator.status["restarts"]["counted"] == 1
    caplog.clear()
    await operator.reconcile(2)
    assert "older than this operator" not in caplog.text, "once is enough"


@pytest.mark.parametrize("name", ["job-7-0", "job-7-0-r1"])
async def test_the_group_of_a_deleted_job_is_closed_later_where_the_patch_is_refused_now(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kueue's webhook does not respond while Kueue restarts. Its finalizer would keep the pods, and their quota, for ever."""
    operator = Operator(Kueue(version="v1beta2"))
    labels = {names.LABEL_JOB_UID: "gone", names.LABEL_ATTEMPT: "7", names.LABEL_RANK: "0"}
    metadata = {
        "name": name,
        "uid": "pod-uid",
        "labels": labels | {names.KUEUE_GROUP_NAME: "job-1-f3c2"},
        "ownerReferences": [{"kind": names.KIND, "uid": "gone", "controller": True}],
        "finalizers": [names.KUEUE_FINALIZER],
        "deletionTimestamp": rfc3339(time.time()),
        "deletionGracePeriodSeconds": 30,
    }
    operator.server.put(PODS, {"metadata": metadata, "spec": {"containers": [{"name": "main"}]}, "status": {}})
    operator.apply()  # another job has its name already
    operator.server.refuse = refusing("patch", "pods")
    planned: list[float] = []
    monkeypatch.setattr(operator.queue, "add_after", lambda _, seconds: planned.append(seconds))
    await operator.reconcile()
    assert operator.server.num("patch", name) == 1
    assert CLOSE_AGAIN_SECONDS in planned
    assert not operator.rejections.of(KEY), "the other job is refused nothing"
    operator.server.refuse = refusing_nothing
    await operator.reconcile(2)
    assert operator.server.num("patch", name) == 2
