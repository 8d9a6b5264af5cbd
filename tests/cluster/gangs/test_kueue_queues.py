"""What only Kueue does with the gangs of a queue."""

import pytest

import testbed
from ddpjob_operator.transport.resources import PODS
from support.gang_providers import KUEUE, RECOVERY_SECONDS, WAITING, Provider, QueuePlaces
from support.operator_cluster import eventually


@pytest.fixture(scope="module")
def provider() -> Provider:
    return KUEUE


async def test_a_waiting_job_says_who_uses_the_quota_and_how_many_jobs_are_before_it(places: QueuePlaces) -> None:
    space = places.namespace
    await places.running("a", 2)
    await places.submit("b", nodes=2)
    await places.waits("b", f"queued in team-a: quota gpu: 2 of 2 used by {space.name}/a")
    await places.submit("c", nodes=2, priority="low")
    await places.waits("c", "queued in team-a: 1 job before it")
    await space.ends("a-1-1", 1, "ValueError: boom")
    await space.reaches("a", "Running", attempt=2)
    status = await places.waits("b", f"used by {space.name}/a")
    assert status["reason"] == "Queued"
    pods = await space.pods()
    assert all("schedulingGates" in pods[f"b-1-{rank}"]["spec"] for rank in range(2))


async def test_after_a_rank_has_succeeded_a_restart_has_a_new_group(places: QueuePlaces) -> None:
    """Kueue takes the pod that has succeeded for a member of the group for good, and one of the new ones for too many."""
    space = places.namespace
    first = await places.running("j", 2)
    await space.ends("j-1-0", 0)
    await space.has_pods("rank 0 to succeed", lambda pods: bool(pods["j-1-0"]["status"]["phase"] == "Succeeded"))
    await space.ends("j-1-1", 1, "ValueError: boom")
    await space.reaches("j", "Running", attempt=2)
    assert await places.group("j", attempt=2) != first

    async def is_released() -> bool:
        return first not in await places.groups()

    await eventually("the first group to be released", is_released)
    assert "j-1-1" in await space.pods()


async def test_a_pod_on_a_lost_node_is_replaced_in_its_group(
    places: QueuePlaces, cluster: testbed.ControlPlane
) -> None:
    """Kueue counts such a pod (`isPodRunnableOrSucceeded` in pod_controller.go), and would delete the new one."""
    space = places.namespace
    group = await places.running("j", 2, **WAITING)
    never_stops = {"metadata": {"annotations": {"testbed/stop-after": "1h"}}}
    await space.client.merge_patch(PODS, space.name, "j-1-1", never_stops)
    node = (await space.pods())["j-1-1"]["spec"]["nodeName"]
    taint = "node.kubernetes.io/out-of-service"
    cluster.kubectl("taint", "node", node, f"{taint}=:NoSchedule")
    try:
        await space.delete_pod("j-1-1", grace_seconds=1)
        await space.shows("j", phase="Running", attempt=1, replacedPods=[{"rank": 1, "replacement": 1}])

        async def is_complete() -> bool:
            return not places.misses_pods((await places.groups())[group])

        await eventually("Kueue to count the new pod", is_complete)
        pods = await space.pods()
        assert places.group_of(pods["j-1-1-r1"]) == group
        assert "j-1-1" not in pods
    finally:
        cluster.kubectl("taint", "node", node, f"{taint}-")


@pytest.mark.nightly
@pytest.mark.timeout(1200)
async def test_a_group_whose_replaced_pod_is_not_ready_in_time_waits_in_the_queue_again(
    places: QueuePlaces, cluster: testbed.ControlPlane
) -> None:
    """`WorkloadWaitForRecovery` in Kueue's `pkg/controller/core/workload_controller.go`."""
    space = places.namespace
    group = await places.running("j", 2, **WAITING)
    await places.submit("b", nodes=2)
    await places.waits("b", f"used by {space.name}/j")
    nodes = cluster.kubectl("get", "nodes", "--output=name").split()
    cluster.kubectl("cordon", *nodes)
    try:
        await space.delete_pod("j-1-1")

        async def is_evicted() -> bool:
            evicted = [c for c in (await places.groups())[group]["status"]["conditions"] if c["type"] == "Evicted"]
            return [c["reason"] for c in evicted] == ["PodsReadyTimeout"]

        await eventually("Kueue to evict the group", is_evicted, 2 * RECOVERY_SECONDS)
    finally:
        cluster.kubectl("uncordon", *nodes)
    await space.reaches("b", "Running")
    await places.waits("j", f"used by {space.name}/b", attempt=(await space.status("j"))["attempt"])
    await space.succeeds("b")
    status = await space.reaches("j", "Running", attempt=(await space.status("j"))["attempt"])
    assert status["restarts"]["counted"] == 0


async def test_a_job_of_another_size_waits_in_the_queue_again(
    places: QueuePlaces, cluster: testbed.ControlPlane
) -> None:
    """Kueue never changes the size of a group, and considers Workloads by their age."""
    space = places.namespace
    await places.running("j", 2)
    await places.submit("b", nodes=2)
    await places.waits("b", f"used by {space.name}/j")
    for rank in range(2):  # so that the Workload of b is older by a second at least
        later = {"metadata": {"annotations": {"testbed/stop-after": "2s", "testbed/stop-exit-code": "75"}}}
        await space.client.merge_patch(PODS, space.name, f"j-1-{rank}", later)
    cluster.kubectl("scale", "ddpjob", "j", "--replicas=1", "-n", space.name)
    await space.reaches("b", "Running")
    await places.waits("j", "queued in team-a: ", attempt=2)
    await space.succeeds("b")
    status = await space.reaches("j", "Running", attempt=2)
    assert (status["ready"], status["restarts"]["counted"], status["restarts"]["infrastructure"]) == ("1/1", 0, 0)


async def test_a_job_that_wants_more_than_the_quota_says_so_and_that_min_nodes_has_no_effect(
    places: QueuePlaces,
) -> None:
    await places.add(2)
    await places.submit("j", nodes=3, minNodes=2)
    status = await places.waits("j", "queued in team-a: quota gpu: 3 requested")
    assert status["message"].endswith("minNodes has no effect, since the scheduling provider is kueue")
    await places.namespace.edit("j", nodes=2)
    await places.namespace.shows("j", phase="Running", ready="2/2")
