"""How the pods of a gang are created: all at once, few where they are refused, and without holding up other jobs."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from ddpjob_operator.core.actions import Action, CreatePod, DeletePod
from ddpjob_operator.core.model import Body, Job, Rejection
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.render.pods import PodManifest, create_pod
from ddpjob_operator.kube.cache.store import Store
from ddpjob_operator.kube.engine.actuator import MAX_PARALLEL, Actuator
from ddpjob_operator.kube.engine.expectations import Expectations
from ddpjob_operator.kube.engine.rejections import LAST_RETRY_SECONDS, Rejections
from ddpjob_operator.kube.keys import key_of
from ddpjob_operator.transport.errors import ApiError, ConflictError, RejectedError, ThrottledError, UnavailableError
from support.builders import job, observed

NODES = 1000
QUOTA = RejectedError("create pods", "exceeded quota: team", status=403)
JOB = job(nodes=NODES)
KEY = key_of(JOB)


class Server:
    """Creates the first `capacity` pods and answers the rest with `error`, each after one turn of the event loop."""

    def __init__(self, capacity: int = NODES, error: ApiError = QUOTA) -> None:
        self.capacity, self.error = capacity, error
        self.is_busy = asyncio.Event()
        self.created: list[str] = []
        self.num_posts = self.at_once = self.most_at_once = 0

    async def create(self, _resource: Any, _namespace: str, body: Body) -> Body:
        self.num_posts += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        if self.at_once == MAX_PARALLEL:
            self.is_busy.set()
        await asyncio.sleep(0)
        self.at_once -= 1
        if len(self.created) >= self.capacity:
            raise self.error
        self.created.append(body["metadata"]["name"])
        return body


class Bench:
    """An actuator with a stand-in for the API server."""

    def __init__(self, server: Any) -> None:
        self.server, self.rejections = server, Rejections()
        store = Store(lambda _, **__: None, lambda *_: None)
        self.now = 0.0
        self.actuator = Actuator(server, store, Expectations(), self.rejections, lambda: self.now)

    async def create(self) -> int:
        """A round for all pods that are missing; gives the number of requests."""
        before = self.server.num_posts
        missing = [pod for pod in pods() if pod.name not in self.server.created]
        await self.actuator.run(JOB, missing)
        return int(self.server.num_posts - before)


def pods() -> list[CreatePod]:
    return pods_of(JOB)


def pods_of(of: Job) -> list[CreatePod]:
    assert of.spec is not None, "builders make valid jobs"
    return [create_pod(of, of.spec, "image:1", rank) for rank in range(of.spec.nodes)]


async def test_an_accepted_gang_is_created_in_one_round_many_pods_at_a_time() -> None:
    bench = Bench(Server())
    assert await bench.create() == NODES
    assert bench.server.most_at_once == MAX_PARALLEL
    assert bench.rejections.of(KEY) == {}


class SlowServer(Server):
    """Answers nothing until all that is sent at one time has been sent."""

    async def create(self, _resource: Any, _namespace: str, body: Body) -> Body:
        self.at_once += 1
        for _ in range(20):
            await asyncio.sleep(0)
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.created.append(f"{body['kind']} of {self.at_once}")
        for _ in range(20):
            await asyncio.sleep(0)
        self.at_once -= 1
        return body


async def test_what_pods_need_is_created_at_once_and_the_pods_after_all_of_it() -> None:
    """A rank must not be open to strangers, not even for a moment: no pod before the NetworkPolicy."""
    bench, two = Bench(SlowServer()), job(nodes=2)
    seen = replace(observed(two), service=None, makes_network_policies=True)
    await bench.actuator.run(two, plan(seen, 0.0).actions)
    assert bench.server.created == ["Service of 2", "NetworkPolicy of 2", "Pod of 2", "Pod of 2"]


async def test_a_refused_gang_costs_one_request_for_each_retry() -> None:
    bench = Bench(Server(capacity=100))
    assert await bench.create() <= 100 + MAX_PARALLEL
    assert "exceeded quota" in next(iter(bench.rejections.of(KEY).values())).message
    assert [await bench.create() for _ in range(3)] == [1, 1, 1]


async def test_a_gang_costs_one_request_while_another_one_of_its_namespace_is_refused() -> None:
    """A quota or a policy that refuses one gang refuses most others: 500 bad jobs must not cost a request for each pod."""
    bench = Bench(Server(capacity=0))
    await bench.create()
    other, before = replace(JOB, name="other", uid="other-uid"), bench.server.num_posts
    await bench.actuator.run(other, pods())
    assert bench.server.num_posts == before + 1
    elsewhere, before = replace(JOB, namespace="elsewhere"), bench.server.num_posts
    await bench.actuator.run(elsewhere, pods())
    assert bench.server.num_posts > before + 1


async def test_a_gang_that_is_no_longer_refused_is_created_in_the_next_round() -> None:
    bench = Bench(Server(capacity=0))
    await bench.create()
    bench.server.capacity = NODES
    assert await bench.create() == NODES
    assert bench.server.most_at_once == MAX_PARALLEL


async def test_a_server_that_fails_for_one_pod_in_twenty_creates_the_others_in_the_same_round() -> None:
    class Flaky(Server):
        async def create(self, *arguments: Any) -> Body:
            body = await super().create(*arguments)
            if self.num_posts % 20 == 19:
                self.created.pop()
                raise UnavailableError("create pods", "failed calling webhook", status=500)
            return body

    bench = Bench(Flaky())
    assert await bench.create() == NODES
    assert len(bench.server.created) >= NODES * 0.9


@pytest.mark.parametrize(
    "error", [ThrottledError("create", "later", status=429), UnavailableError("create", "no answer in time")]
)
async def test_a_round_ends_when_the_server_does_not_take_more(error: ApiError) -> None:
    bench = Bench(Server(capacity=0, error=error))
    with pytest.raises(type(error)):
        await bench.create()
    assert bench.server.num_posts <= MAX_PARALLEL


async def test_an_api_server_that_does_not_know_the_kind_yet_is_retried_for_a_minute_before_it_is_reported() -> None:
    """Right after the CRD was installed a job had a Warning event PodRejected, although nothing was wrong."""
    message = (
        "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion ddpjob.dev/v1beta1"
    )
    bench = Bench(Server(capacity=0, error=RejectedError("create pods", message, status=403)))
    for bench.now in (0.0, 59.0):
        with pytest.raises(ConflictError):
            await bench.create()
        assert bench.rejections.of(KEY) == {}
    bench.now = 60.0
    await bench.create()
    assert "RESTMapping" in next(iter(bench.rejections.of(KEY).values())).message
    bench.server.capacity = 1  # a creation shows that the kind is known
    with pytest.raises(ConflictError):
        await bench.create()


async def test_a_deletion_of_another_job_waits_for_a_bounded_number_of_creations() -> None:
    class Recording(Server):
        deleted_after = NODES

        async def delete(self, *_: Any, **__: Any) -> None:
            self.deleted_after = self.num_posts

    server = Recording()
    bench = Bench(server)
    other: Job = replace(JOB, name="other", uid="other-uid")
    deletion: list[Action] = [DeletePod(name="other-1-0", uid="p", grace_seconds=1)]
    creating = asyncio.create_task(bench.create())
    await server.is_busy.wait()
    await bench.actuator.run(other, deletion)
    assert server.deleted_after <= 3 * MAX_PARALLEL
    await creating


async def test_four_pods_of_another_namespace_wait_for_few_of_four_thousand_creations() -> None:
    """Counted in requests, not in seconds."""
    server = Server(capacity=10_000)
    bench = Bench(server)
    large, small = job(nodes=4096), replace(job(nodes=4), namespace="small", uid="small-uid")
    creating = asyncio.create_task(bench.actuator.run(large, pods_of(large)))
    await server.is_busy.wait()
    before = server.num_posts
    await bench.actuator.run(small, pods_of(small))
    assert server.num_posts - before <= 5 * MAX_PARALLEL
    await creating
    assert server.num_posts == 4096 + 4


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
    bench = Bench(Server(capacity=0))
    await bench.create()
    assert len(rendered) <= MAX_PARALLEL


def owned_by(job: str, uid: str) -> dict[str, Any]:
    return {"ownerReferences": [{"kind": "DDPJob", "name": job, "uid": uid}]}


class Namesake:
    """Has a pod of another job under the name that is to be created."""

    def __init__(self, **metadata: Any) -> None:
        self.pod = {"metadata": {**owned_by("job", "old-uid"), **metadata}, "spec": {"nodeName": "gpu-3"}}

    async def create(self, *_: Any) -> Body:
        raise ConflictError("create pods", 'pods "job-1-0" already exists', status=409)

    async def get(self, *_: Any) -> Body:
        return self.pod


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
    bench = Bench(Namesake(**metadata))
    await bench.actuator.run(JOB, pods()[:1])

    (rejection,) = bench.rejections.of(KEY).values()
    assert rejection.is_terminating is is_terminating
    assert expected in rejection.message


def test_a_pod_that_is_always_refused_is_created_again_at_a_bounded_interval() -> None:
    """A delay that doubles overflows after a thousand refusals, which is half a day of a full quota."""
    rejections, (creation, *_) = Rejections(), pods()
    for _ in range(2000):
        rejections.record(KEY, [creation], {creation.name: Rejection("exceeded quota")}, some_done=False)
    assert 0 < rejections.seconds_to_retry(KEY) <= LAST_RETRY_SECONDS


def test_a_refusal_on_purpose_has_the_time_of_the_first_one_and_a_quota_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rejections, (creation, *_) = Rejections(), pods()
    seen = []
    for now, why in enumerate(
        ("exceeded quota: team", "denied", "denied by 2 rules", "exceeded quota: team", "denied")
    ):
        monkeypatch.setattr("time.time", partial(float, now))
        rejections.record(KEY, [creation], {creation.name: Rejection(why)}, some_done=False)
        seen.append(rejections.of(KEY)[creation.name].since)
    assert seen == [0.0, 1.0, 1.0, 3.0, 4.0]
