"""Gangs without a scheduler of gangs: the operator releases a part that waits too long, and uses affinity and fewer nodes."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import testbed
from ddpjob_operator.transport.resources import PODS
from support import competing_gangs
from support.operator_cluster import Namespace, eventually, kwok_nodes

pytestmark = pytest.mark.usefixtures("operator_process")

#: A gang holds a part of its nodes for 45 s at most, and pauses for up to 23 s.
RELEASE_SECONDS = 240.0
NUM_TRIALS = 8
#: The scheduler may happen to take the pods of one gang after those of the other at each node.
MOST_ROUNDS = 5


async def test_two_gangs_of_which_each_has_a_part_of_the_nodes_both_finish(
    namespace: Namespace, cluster: testbed.ControlPlane
) -> None:
    """Without a release they would wait for each other forever. The test takes the scheduler's place for the first pods."""

    async def gets(name: str, node: str) -> None:
        template = {"spec": {"nodeSelector": {"pool": namespace.name}}}
        await namespace.apply(name, nodes=2, gpusPerNode=1, template=template)
        await eventually("the first pod to exist", lambda: namespace.find(PODS, f"{name}-1-0"))
        await namespace.bind(f"{name}-1-0", node)

    with kwok_nodes(cluster, 2, gpus=1) as nodes:
        cluster.kubectl("label", "node", *nodes, f"pool={namespace.name}")
        cluster.kubectl("cordon", *nodes)
        await gets("a", nodes[0])
        await gets("b", nodes[1])
        cluster.kubectl("uncordon", *nodes)
        waiting = {"a", "b"}

        async def one_runs() -> str | None:
            phases = {name: (await namespace.status(name))["phase"] for name in waiting}
            return next((name for name, phase in phases.items() if phase == "Running"), None)

        attempts = []
        while waiting:
            runs = await eventually("a gang to have both nodes", one_runs, RELEASE_SECONDS)
            waiting.remove(runs)
            status = await namespace.succeeds(runs, (await namespace.status(runs))["attempt"])
            assert (status["restarts"]["counted"], status["restarts"]["infrastructure"]) == (0, 0)
            attempts.append(status["attempt"])
        assert sum(attempts) > 2, "no gang released its node"


@pytest.mark.nightly
@pytest.mark.timeout(2000)
async def test_pairs_of_gangs_that_compete_for_a_node_all_finish(
    new_namespace: Callable[[], Awaitable[Namespace]], cluster: testbed.ControlPlane
) -> None:
    num_given_back = 0
    with kwok_nodes(cluster, NUM_TRIALS, gpus=competing_gangs.NUM_GPUS) as nodes:
        for _ in range(MOST_ROUNDS):
            pairs = await competing_gangs.compete(await new_namespace(), cluster, nodes)
            assert sum(pair.num_restarts for pair in pairs) == 0
            num_given_back += sum(pair.num_given_back for pair in pairs)
            if num_given_back:
                break
    print(f"gangs were released {num_given_back} times")
    assert num_given_back > 0, "no two gangs competed, so this run shows nothing"


async def test_a_preempted_pod_is_a_loss_that_is_not_counted(
    namespace: Namespace, cluster: testbed.ControlPlane
) -> None:
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    cluster.kubectl.apply({**kind, "metadata": {"name": namespace.name}, "value": 1000})
    with kwok_nodes(cluster, 1, gpus=1) as nodes:
        here = {"nodeSelector": {"kubernetes.io/hostname": nodes[0]}}
        await namespace.apply("low", gpusPerNode=1, template={"spec": here})
        await namespace.reaches("low", "Running")
        urgent = {**here, "priorityClassName": namespace.name}
        await namespace.apply("urgent", gpusPerNode=1, template={"spec": urgent})
        await namespace.reaches("urgent", "Running")
        status = await namespace.shows("low", attempt=2, reason="Unschedulable")
    assert status["failure"]["reason"] == "Preempted"
    assert (status["restarts"]["counted"], status["restarts"]["infrastructure"]) == (0, 1)


async def test_without_a_gang_scheduler_topology_is_an_affinity(
    namespace: Namespace, cluster: testbed.ControlPlane
) -> None:
    with kwok_nodes(cluster, 6, gpus=1) as nodes:
        racks = {node: str(number % 2) for number, node in enumerate(nodes)}
        for node, rack in racks.items():
            cluster.kubectl("label", "node", node, f"rack={rack}")
        await namespace.apply(
            "near", nodes=3, gpusPerNode=1, scheduling={"topology": {"key": "rack", "mode": "required"}}
        )
        await namespace.reaches("near", "Running")
        assert len({racks[pod["spec"]["nodeName"]] for pod in (await namespace.pods()).values()}) == 1


async def test_a_job_with_min_nodes_runs_on_what_it_gets_and_later_on_all(
    namespace: Namespace, cluster: testbed.ControlPlane
) -> None:
    """It keeps its nodes until pods without a program have places for the others."""
    pool = f"pool={namespace.name}"

    async def runs(ready: str) -> dict[str, Any]:
        return await namespace.shows("j", phase="Running", ready=ready, seconds=300)

    with kwok_nodes(cluster, 2, gpus=1) as nodes:
        cluster.kubectl("label", "node", *nodes, pool)
        await namespace.apply(
            "j",
            nodes=3,
            minNodes=2,
            gpusPerNode=1,
            deadlines={"fullSizeSeconds": 10},
            template={"spec": {"nodeSelector": {"pool": namespace.name}}},
        )
        status = await runs("2/2")
        assert (status["shrunkFrom"], status["replicas"]) == (3, 2)
        assert (status["restarts"]["counted"], status["restarts"]["infrastructure"]) == (0, 0)
        pods = await namespace.pods()
        of_attempt = [pod for name, pod in pods.items() if name.startswith(f"j-{status['attempt']}-")]
        variables = [one for pod in of_attempt for one in pod["spec"]["containers"][0]["env"]]
        assert [one["value"] for one in variables if one["name"] == "WORLD_SIZE"] == ["2", "2"]
        await namespace.edit("j", deadlines={"fullSizeSeconds": 10, "fewerNodesSeconds": 1})
        await namespace.shows("j", "0 of 1 pods that wait for the missing nodes have one")
        await eventually("a pod to wait for it", lambda: namespace.find(PODS, f"j-{status['attempt']}-2-place"))
        assert (await runs("2/2"))["attempt"] == status["attempt"], "it stopped although there is no place"
        nodes += cluster.add_kwok_nodes(1, gpus=1)
        cluster.kubectl("label", "node", nodes[-1], pool)
        grown = await runs("3/3")
        assert "shrunkFrom" not in grown
        assert grown["attempt"] == status["attempt"] + 1, "it stopped more than once"
        await namespace.has_pods(
            "no pod to hold a place", lambda pods: not any(name.endswith("-place") for name in pods)
        )
