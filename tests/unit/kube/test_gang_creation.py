"""How the pods of a gang are created: all at once, few where they are refused, and without holding up other jobs."""

import asyncio
import itertools
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest

from ddpjob_operator.core.actions import Action, CreatePod, DeletePod
from ddpjob_operator.core.model import Body, Job, Rejection
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.render.pods import PodManifest, create_pod
from ddpjob_operator.kube.engine.actuator import MAX_PARALLEL, Actuator
from ddpjob_operator.kube.engine.expectations import Expectations
from ddpjob_operator.kube.engine.job_memory import JobMemories
from ddpjob_operator.kube.engine.refused import LAST_RETRY_SECONDS
from ddpjob_operator.kube.engine.rejections import Rejections
from ddpjob_operator.kube.keys import key_of
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ApiError, ConflictError, RejectedError, ThrottledError, UnavailableError
from ddpjob_operator.transport.resources import PODS
from support.builders import job, observed
from support.engine import happens, new_store
from support.fake_server import FakeServer

NODES = 1000
QUOTA = RejectedError("create pods", "exceeded quota: team", status=403)
JOB = job(nodes=NODES)
KEY = key_of(JOB)


def server(capacity: int = NODES, error: ApiError = QUOTA) -> FakeServer:
    """Creates the first `capacity` objects and answers the rest with `error`."""
    places = iter(range(capacity))
    return FakeServer(refuse=lambda asked: error if asked.verb == "create" and next(places, None) is None else None)


class Bench:
    """An actuator and its API server."""

    def __init__(self, server: FakeServer) -> None:
        self.server, self.rejections = server, Rejections(JobMemories())
        store = new_store()
        self.now = 0.0
        client = cast("Client", server)
        self.actuator = Actuator(client, store, Expectations(JobMemories()), self.rejections, lambda: self.now)

    async def create(self) -> int:
        """A round for all pods that are missing; gives the number of requests."""
        before, names = self.server.num("create"), self.server.names(PODS)
        await self.actuator.run(JOB, [pod for pod in pods() if pod.name not in names])
        return self.server.num("create") - before


def pods() -> list[CreatePod]:
    return pods_of(JOB)


def pods_of(of: Job) -> list[CreatePod]:
    assert of.spec is not None, "builders make valid jobs"
    return [create_pod(of, of.spec, "image:1", rank) for rank in range(of.spec.nodes)]


async def test_an_accepted_gang_is_created_in_one_round_many_pods_at_a_time() -> None:
    bench = Bench(server())
    assert await bench.create() == NODES
    assert bench.server.most_open == MAX_PARALLEL
    assert bench.rejections.of(KEY) == {}


async def test_what_pods_need_is_created_at_once_and_the_pods_after_all_of_it() -> None:
    """A rank must not be open to strangers, not even for a moment: no pod before the NetworkPolicy."""
    bench, two = Bench(server()), job(nodes=2)
    bench.server.answer_seconds = 1.0  # all that is sent at one time has been sent by then
    opened: list[str] = []
    bench.server.refuse = lambda request: opened.append(f"{request.plural} of {bench.server.num_open}")
    seen = replace(observed(two), service=None, makes_network_policies=True)
    await bench.actuator.run(two, plan(seen, 0.0).actions)
    assert opened == ["services of 2", "networkpolicies of 1", "pods of 2", "pods of 1"]


async def test_a_refused_gang_costs_one_request_for_each_retry() -> None:
    bench = Bench(server(capacity=100))
    assert await bench.create() <= 100 + MAX_PARALLEL
    assert "exceeded quota" in next(iter(bench.rejections.of(KEY).values())).message
    assert [await bench.create() for _ in range(3)] == [1, 1, 1]


async def test_a_gang_costs_one_request_while_another_one_of_its_namespace_is_refused() -> None:
    """A quota or a policy that refuses one gang refuses most others: 500 bad jobs must not cost a request for each pod."""
    bench = Bench(server(capacity=0))
    await bench.create()
    other, before = replace(JOB, name="other", uid="other-uid"), bench.server.num("create")
    await bench.actuator.run(other, pods())
    assert bench.server.num("create") == before + 1
    elsewhere, before = replace(JOB, namespace="elsewhere"), bench.server.num("create")
    await bench.actuator.run(elsewhere, pods())
    assert bench.server.num("create") > before + 1


async def test_a_gang_that_is_no_longer_refused_is_created_in_the_next_round() -> None:
    bench = Bench(server(capacity=0))
    await bench.create()
    bench.server.refuse = lambda _: None
    assert await bench.create() == NODES
    assert bench.server.most_open == MAX_PARALLEL


async def test_a_server_that_fails_for_one_pod_in_twenty_creates_the_others_in_the_same_round() -> None:
    failure = UnavailableError("create pods", "failed calling webhook", status=500)
    bench = Bench(FakeServer())
    answers = itertools.count(1)
    bench.server.refuse = lambda _: failure if next(answers) % 20 == 19 else None
    assert await bench.create() == NODES
    assert len(bench.server.names(PODS)) >= NODES * 0.9


@pytest.mark.parametrize(
    "error", [ThrottledError("create", "later", status=429), UnavailableError("create", "no answer in time")]
)
async def test_a_round_ends_when_the_server_does_not_take_more(error: ApiError) -> None:
    bench = Bench(server(capacity=0, error=error))
    with pytest.raises(type(error)):
        await bench.create()
    assert bench.server.num("create") <= MAX_PARALLEL


async def test_an_api_server_that_does_not_know_the_kind_yet_is_retried_for_a_minute_before_it_is_reported() -> None:
    """Right after the CRD was installed a job had a Warning event PodRejected, although nothing was wrong."""
    message = (
        "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion ddpjob.dev/v1beta1"
    )
    unknown = RejectedError("create pods", message, status=403)
    bench = Bench(server(capacity=0, error=unknown))
    for bench.now in (0.0, 59.0):
        with pytest.raises(ConflictError):
            await bench.create()
        assert bench.rejections.of(KEY) == {}
    bench.now = 60.0
    await bench.create()
    assert "RESTMapping" in next(iter(bench.rejections.of(KEY).values())).message
    bench.server.refuse = server(1, unknown).refuse  # a creation shows that the kind is known
    with pytest.raises(ConflictError):
        await bench.create()


async def test_a_deletion_of_another_job_waits_for_a_bounded_number_of_creations() -> None:
    bench = Bench(server())
    other: Job = replace(JOB, name="other", uid="other-uid")
    deletion: list[Action] = [DeletePod(name="other-1-0", uid="p", grace_seconds=1)]
    bench.server.answer_seconds = 1.0
    creating = asyncio.create_task(bench.create())
    await happens(lambda: bench.server.num_open == MAX_PARALLEL)
    await bench.actuator.run(other, deletion)
    assert [request.verb for request in bench.server.requests].index("delete") <= 3 * MAX_PARALLEL
    await creating


async def test_four_pods_of_another_namespace_wait_for_few_of_four_thousand_creations() -> None:
    """Counted in requests, not in seconds."""
    bench = Bench(server(capacity=10_000))
    large, small = job(nodes=4096), replace(job(nodes=4), namespace="small", uid="small-uid")
    bench.server.answer_seconds = 1.0
    creating = asyncio.create_task(bench.actuator.run(large, pods_of(large)))
    await happens(lambda: bench.server.num_open == MAX_PARALLEL)
    before = bench.server.num("create")
    await bench.actuator.run(small, pods_of(small))
    assert bench.server.num("create") - before <= 5 * MAX_PARALLEL
    await creating
    assert bench.server.num("create") == 4096 + 4


async def test_pods_are_rendered_when_they_are_sent_and_not_by_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[int] = []
    real = PodManifest.render

    def render(self: PodManifest) -> Body:
        rendered.append(self.rank)
        return real(self)

    monkeypatch.setattr(PodManifest, "render", render)
    made = plan(observed(JOB), 1_800_000_000.0)
    assert sum(isinstance(action, CreatePod) for action in made.actions) == NODES
    assert rendered == []
    bench = Bench(server(capacity=0))
    await bench.create()
    assert len(rendered) <= MAX_PARALLEL


def owned_by(job: str, uid: str) -> dict[str, Any]:
    return {"ownerReferences": [{"kind": "DDPJob", "name": job, "uid": uid}]}


UNTIL_DELETED = "waiting until pod job-1-0 of DDPJob job (uid old-uid) is deleted on node gpu-3"


@pytest.mark.parametrize(
    ("metadata", "is_terminating", "expected"),
    [
        ({"deletionTimestamp": "2027-01-01T00:00:00Z"}, True, f"{UNTIL_DELETED}; if that node is off, taint it"),
        ({}, True, UNTIL_DELETED),
        (owned_by("other", "old-uid"), False, "it exists and belongs to DDPJob other (uid old-uid), not to this job"),
        # Otherwise it was looked up every five seconds for ever, with a status that named no obstacle.
        (
            owned_by("job", "job-uid") | {"labels": {"ddpjob.dev/job": "job", "ddpjob.dev/attempt": "1"}},
            False,
            "it exists without its label ddpjob.dev/job-uid=job-uid, ddpjob.dev/rank=0: add the label again, or delete",
        ),
    ],
)
async def test_a_pod_of_the_same_name_is_waited_for_if_it_is_being_deleted_or_is_an_earlier_job_s(
    metadata, is_terminating, expected
) -> None:
    bench = Bench(FakeServer())
    namesake = {"name": "job-1-0", **owned_by("job", "old-uid"), **metadata}
    bench.server.put(PODS, {"metadata": namesake, "spec": {"nodeName": "gpu-3"}}, JOB.namespace)
    await bench.actuator.run(JOB, pods()[:1])

    (rejection,) = bench.rejections.of(KEY).values()
    assert rejection.is_terminating is is_terminating
    assert expected in rejection.message


def test_a_pod_that_is_always_refused_is_created_again_at_a_bounded_interval() -> None:
    """A delay that doubles overflows after a thousand refusals, which is half a day of a full quota."""
    rejections, (creation, *_) = Rejections(JobMemories()), pods()
    for _ in range(2000):
        rejections.record(KEY, [creation], {creation.name: Rejection("exceeded quota")}, some_done=False)
    assert 0 < rejections.seconds_to_retry(KEY) <= LAST_RETRY_SECONDS


def test_a_refusal_on_purpose_has_the_time_of_the_first_one_and_a_quota_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rejections, (creation, *_) = Rejections(JobMemories()), pods()
    seen = []
    for now, why in enumerate(
        ("exceeded quota: team", "denied", "denied by 2 rules", "exceeded quota: team", "denied")
    ):
        monkeypatch.setattr("time.time", partial(float, now))
        rejections.record(KEY, [creation], {creation.name: Rejection(why)}, some_done=False)
        seen.append(rejections.of(KEY)[creation.name].since)
    assert seen == [0.0, 1.0, 1.0, 3.0, 4.0]
