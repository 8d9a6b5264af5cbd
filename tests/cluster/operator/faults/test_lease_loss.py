"""A leader that loses its Lease or hands it over stops in time, and another finishes its work, late requests included."""

import asyncio
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

import testbed
from ddpjob_operator.transport.resources import LEASES
from support.operator_cluster import LEASE_SECONDS, Namespace, eventually
from support.operator_process import STOP_SECONDS, OperatorProcess
from support.scripted_jobs import SCRIPTS, ScriptedJobs
from support.supervised_operator import SupervisedOperator
from testbed import audit
from testbed.faultproxy import FaultProxy
from testbed.faults import WRITES, Delay, Hold, LoseRequest, Silence

NUM_HANDOVERS = 10
SECONDS = 240.0
#: Of a Lease that the first operator must not lose while the second one starts, and that a test waits for.
LOST_AFTER_SECONDS = 2 * LEASE_SECONDS
Operators = Callable[..., OperatorProcess]


def cut_off_from_the_lease(proxy: FaultProxy) -> None:
    """No renewal reaches the API server, and the watch does not show that another has the Lease."""
    proxy.inject(LoseRequest(), target="/leases")
    proxy.inject(Silence(), verbs=("watch",), target="/leases")


async def holder(namespace: Namespace) -> str:
    return str((await namespace.client.get(LEASES, namespace.name, "operator"))["spec"].get("holderIdentity"))


def uids_of(pods: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in pods.items()}


async def test_a_leader_without_renewals_stops_writing_before_the_next_one_continues_its_jobs(
    namespace: Namespace, cluster: testbed.ControlPlane, proxy: FaultProxy, leased_operator: Operators
) -> None:
    first = leased_operator("first", lease_seconds=LOST_AFTER_SECONDS, kubeconfig=proxy.kubeconfig)
    second = leased_operator("second", lease_seconds=LOST_AFTER_SECONDS)
    first.start()
    second.start()
    writes = proxy.inject(Delay(0.0, 0.0), verbs=WRITES, target="/(pods|services|ddpjobs)")
    jobs = ScriptedJobs(namespace, cluster)
    async with jobs.carry_out():
        await jobs.apply_all(0, 1)
        await eventually("the first to write", lambda: writes.num_struck > 0)
        cut_off_from_the_lease(proxy)
        await jobs.apply("recovers", 2)

        async def second_leads() -> bool:
            return await holder(namespace) == "second"

        await eventually("the second to hold the Lease", second_leads)
        assert "\nddpjob_leader 0.0\n" in first.get("/metrics"), "the first has noticed before"
        num_writes = writes.num_struck  # Writes that were in flight when the first stopped have arrived by now.
        await jobs.apply_all(3)
        await jobs.end_as_scripted(SECONDS)
    assert writes.num_struck == num_writes > 0
    proxy.clear()
    assert first.process is not None
    assert await asyncio.to_thread(first.process.wait, STOP_SECONDS) == 1  # It sees now that another has the Lease.


@pytest.mark.timeout(900)
async def test_leaders_that_hand_over_while_the_next_one_sees_pods_late(
    namespace: Namespace, cluster: testbed.ControlPlane, proxy: FaultProxy, leased_operator: Operators
) -> None:
    # The next leader knows of a job that all its pods exist, and has seen none of them.
    late = proxy.inject(Delay(2.0, 2.0), verbs=("watch",), target="/pods")
    jobs, kinds = ScriptedJobs(namespace, cluster), itertools.cycle(SCRIPTS)
    with (
        # With a Lease that no leader loses on a busy machine; a leader that ends clears it.
        SupervisedOperator(leased_operator("first", lease_seconds=120, kubeconfig=proxy.kubeconfig)) as first,
        SupervisedOperator(leased_operator("second", lease_seconds=120, kubeconfig=proxy.kubeconfig)) as second,
    ):
        leaders = {"first": first, "second": second}
        async with jobs.carry_out():
            for number in range(NUM_HANDOVERS):
                before = await holder(namespace)
                (standby,) = [operator for identity, operator in leaders.items() if identity != before]
                await asyncio.to_thread(standby.wait_until_ready)  # It led until a moment ago.
                await jobs.apply(kind := next(kinds), number)
                await jobs.is_created(f"{kind}-{number}")
                leaders[before].terminate()

                async def another_leads(before: str = before) -> bool:
                    return await holder(namespace) in leaders.keys() - {before}

                await eventually("the other to lead", another_leads)
            await jobs.end_as_scripted(SECONDS)
    assert len(first.exits) + len(second.exits) == NUM_HANDOVERS + 2
    assert late.num_struck


async def test_a_pod_that_a_former_leader_creates_late_is_deleted_and_changes_nothing(
    namespace: Namespace, cluster: testbed.ControlPlane, proxy: FaultProxy, leased_operator: Operators
) -> None:
    leased_operator("first", lease_seconds=LOST_AFTER_SECONDS, kubeconfig=proxy.kubeconfig).start()
    leased_operator("second", lease_seconds=LOST_AFTER_SECONDS).start()
    # Until another has taken the Lease, made the pods itself, lost a rank and deleted the survivor.
    released = threading.Event()
    late = proxy.inject(Hold(released), verbs=("create",), target="/pods")
    await namespace.apply("j", nodes=2)
    await eventually("the first to ask for its pods", lambda: late.num_struck >= 2)
    cut_off_from_the_lease(proxy)
    await namespace.reaches("j", "Running")
    await namespace.ends("j-1-1", 1)
    before = await namespace.reaches("j", "Running", attempt=2)
    left = {"j-1-1", "j-2-0", "j-2-1"}
    uids = uids_of(await namespace.has_pods("the survivor to go", lambda pods: set(pods) == left))
    released.set()

    def num_created() -> int:
        writes = audit.writes(cluster.audit_log, namespace.name)
        return [(w.resource, w.code, w.name) for w in writes].count(("pods", 201, "j-1-0"))

    await eventually("the late request to be done", lambda: num_created() >= 2)
    await namespace.has_pods("the straggler to be deleted", lambda pods: "j-1-0" not in pods)
    after = await namespace.status("j")
    assert (after["phase"], after["attempt"], after["restarts"]) == ("Running", 2, before["restarts"])
    assert uids_of(await namespace.pods()) == uids
    assert (await namespace.services())["j-master"]["spec"]["selector"]["ddpjob.dev/attempt"] == "2"
