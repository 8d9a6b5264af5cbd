"""Several real operators with one Lease: one works, and another takes over when it ends."""

import asyncio
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing, suppress
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from ddpjob_operator.transport.errors import ApiError
from ddpjob_operator.transport.resources import LEASES, PODS
from support.operator_cluster import LEASE_SECONDS, SECONDS, Namespace, eventually
from support.operator_process import STOP_SECONDS, OperatorProcess

Start = Callable[..., OperatorProcess]
#: They list everything after four minutes, which is how long a test may take on a busy machine.
WITHOUT_AUDITS = ("--audit-interval-seconds", "3600")


@pytest.fixture
def start(leased_operator: Start) -> Start:
    """A function that starts an operator of the test's Lease and waits until it is ready."""

    def start_one(identity: str, lease_seconds: int = LEASE_SECONDS) -> OperatorProcess:
        process = leased_operator(identity, *WITHOUT_AUDITS, lease_seconds=lease_seconds)
        process.start()
        return process

    return start_one


async def lease(namespace: Namespace) -> dict[str, Any]:
    return dict((await namespace.client.get(LEASES, namespace.name, "operator"))["spec"])


async def holder_is(namespace: Namespace, identity: str) -> None:
    async def so() -> bool:
        return bool((await lease(namespace)).get("holderIdentity") == identity)

    await eventually(f"{identity} to hold the Lease", so)


async def give_the_lease_to(namespace: Namespace, identity: str | None) -> None:
    patch = {"spec": {"holderIdentity": identity, "leaseDurationSeconds": 3600}}
    await namespace.client.merge_patch(LEASES, namespace.name, "operator", patch)


async def create_a_lease_held_by(namespace: Namespace, identity: str) -> None:
    body = {"metadata": {"name": "operator"}, "spec": {"holderIdentity": identity, "leaseDurationSeconds": 3600}}
    await namespace.client.create(LEASES, namespace.name, body)


def metric(process: OperatorProcess, line: str) -> float:
    found = re.search(rf"^{re.escape(line)} (\S+)$", process.get("/metrics"), re.MULTILINE)
    return float(found[1]) if found else 0.0


def requests_of(process: OperatorProcess) -> Counter[tuple[str, str]]:
    """The operator's requests by verb and resource, without kopf's watch."""
    pattern = r'^ddpjob_api_requests_total\{.*resource="(\w+)",verb="(\w+)"\} (\S+)$'
    asked = Counter[tuple[str, str]]()
    for resource, verb, number in re.findall(pattern, process.get("/metrics"), re.MULTILINE):
        asked[verb, resource] += int(float(number))
    return asked


async def test_a_standby_follows_everything_and_writes_nothing(namespace: Namespace, start: Start) -> None:
    await create_a_lease_held_by(namespace, "somebody")
    standby = start("standby")
    created = await namespace.apply("j", nodes=2)
    await eventually("the standby to know the job", lambda: metric(standby, 'ddpjob_jobs{phase="New"}') == 1)
    # Nobody takes a key out of its queue, so none may come in.
    assert metric(standby, 'workqueue_adds_total{controller="ddpjob",name="ddpjob"}') == 0
    reviews = ("create", "selfsubjectaccessreviews")  # which rights it has is asked by a POST that stores nothing
    assert {verb for verb, _ in requests_of(standby).keys() - {reviews}} <= {"get", "list", "watch"}
    assert (await namespace.job("j"))["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
    assert not await namespace.pods()
    assert metric(standby, "ddpjob_leader") == 0

    await give_the_lease_to(namespace, None)
    await namespace.reaches("j", "Running")
    assert metric(standby, "ddpjob_leader") == 1


async def test_a_leader_that_is_killed_is_replaced_within_the_lease(namespace: Namespace, start: Start) -> None:
    leader = start("first")
    start("second")
    created: dict[str, str] = {}
    counting = asyncio.create_task(count_creations_of_pods(namespace, created))
    jobs = [f"j{number}" for number in range(10)]
    for name in jobs:
        await namespace.apply(name, nodes=4)
    await eventually("the leader to be in the middle of it", lambda: len(created) >= 8)
    leader.kill()
    await holder_is(namespace, "second")
    for name in jobs:
        await namespace.reaches(name, "Running")
    await eventually("the watch to show the last creation", lambda: len(created) >= 40)
    counting.cancel()
    assert sorted(created.values()) == sorted(f"{name}-1-{rank}" for name in jobs for rank in range(4))


async def count_creations_of_pods(namespace: Namespace, created: dict[str, str]) -> None:
    """Note the name of each pod by its uid, over the end of a watch, which a busy machine may bring."""
    while True:
        with suppress(ApiError):
            async with aclosing(namespace.client.watch(PODS, namespace.name, "", "")) as events:
                async for event in events:
                    if event.type == "ADDED":
                        created[event.body["metadata"]["uid"]] = event.body["metadata"]["name"]
        await asyncio.sleep(0.1)


async def test_a_restarted_leader_continues_with_its_own_lease(namespace: Namespace, start: Start) -> None:
    start("first", lease_seconds=600).kill()
    assert (await lease(namespace))["holderIdentity"] == "first"
    start("first", lease_seconds=600)
    await namespace.apply("j")
    await namespace.reaches("j", "Running")
    assert (await lease(namespace))["leaseTransitions"] == 0


async def test_a_leader_that_was_stopped_by_a_signal_writes_nothing_when_it_continues(
    namespace: Namespace, start: Start
) -> None:
    """When it continues, it gets all events of the meantime before it learns that the Lease has another holder."""
    leader = start("first")
    jobs = [f"j{number}" for number in range(12)]
    for name in jobs:
        await namespace.apply(name)
    for name in jobs:
        await namespace.reaches(name, "Running")
    assert leader.process is not None
    leader.process.send_signal(signal.SIGSTOP)
    frozen_at = time.monotonic()
    for name in jobs:
        await namespace.ends(f"{name}-1-0", 1)
    before = {name: (await namespace.job(name))["metadata"]["resourceVersion"] for name in jobs}
    await namespace.has_pods(
        "the pods to fail", lambda pods: {pod["status"]["phase"] for pod in pods.values()} == {"Failed"}
    )
    await eventually("the Lease to run out", lambda: time.monotonic() > frozen_at + LEASE_SECONDS)
    await give_the_lease_to(namespace, "somebody")
    leader.process.send_signal(signal.SIGCONT)
    assert await asyncio.to_thread(leader.process.wait, STOP_SECONDS) == 1
    assert set(await namespace.pods()) == {f"{name}-1-0" for name in jobs}
    assert {name: (await namespace.job(name))["metadata"]["resourceVersion"] for name in jobs} == before


async def test_an_idle_operator_sends_only_renewals_of_its_lease(namespace: Namespace, start: Start) -> None:
    lease_seconds = 15  # a renewal that takes a quarter of it is repeated
    leader = start("first", lease_seconds=lease_seconds)
    standby = start("second", lease_seconds=lease_seconds)
    await namespace.apply("j")
    await namespace.reaches("j", "Running")
    await namespace.succeeds("j")
    await eventually("the Events of its start and of its end", lambda: requests_of(leader)["create", "events"] == 2)
    before = requests_of(leader) + requests_of(standby)
    renewals = await next_renewals(namespace, 3)
    asked = requests_of(leader) + requests_of(standby) - before
    watches = {request for request in asked if request[0] == "watch"}  # each lasts five minutes
    assert set(asked) - watches == {("patch", "leases")}
    assert all(asked[request] <= 2 for request in watches), asked
    apart = [(later - earlier).total_seconds() for earlier, later in pairwise(renewals)]
    assert all(seconds >= lease_seconds / 3 for seconds in apart), apart


async def next_renewals(namespace: Namespace, number: int) -> list[datetime]:
    """Wait for so many renewals of the Lease; gives the times of them."""
    seen = [(await lease(namespace))["renewTime"]]

    async def enough() -> bool:
        renewed = (await lease(namespace))["renewTime"]
        if renewed != seen[-1]:
            seen.append(renewed)
        return len(seen) > number

    await eventually(f"{number} renewals", enough, seconds=2 * SECONDS)
    return [datetime.fromisoformat(renewed) for renewed in seen[1:]]


async def test_a_deleted_lease_is_created_again(namespace: Namespace, start: Start) -> None:
    start("first")
    await holder_is(namespace, "first")
    old = await namespace.client.get(LEASES, namespace.name, "operator")
    await namespace.client.delete(LEASES, namespace.name, "operator", uid=old["metadata"]["uid"])
    await eventually("another Lease", lambda: namespace.find(LEASES, "operator"))
    await namespace.apply("j")
    await namespace.reaches("j", "Running")


async def test_a_new_leader_lists_everything_again(namespace: Namespace, start: Start) -> None:
    """So that it creates no pod of an attempt that its caches show and that the former leader has ended."""
    leader = start("first", lease_seconds=600)
    standby = start("second", lease_seconds=600)
    lists = [
        f'ddpjob_api_requests_total{{code="200",resource="{kind}",verb="list"}}'
        for kind in ("ddpjobs", "pods", "services")
    ]
    before = [metric(standby, line) for line in lists]
    leader.stop()
    await namespace.apply("j")
    await namespace.reaches("j", "Running")
    assert all(metric(standby, line) > number for line, number in zip(lists, before, strict=True))
