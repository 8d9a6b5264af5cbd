"""Two gangs that compete for the GPUs of one node: without a release they would wait for each other forever."""

from collections.abc import Awaitable, Callable

import pytest

import testbed
from bench import gangs
from operator_cluster import Namespace

pytestmark = pytest.mark.usefixtures("operator_process")

NUM_TRIALS = 8
#: The scheduler may happen to take the pods of one gang after those of the other at each node.
MOST_ROUNDS = 5


@pytest.mark.timeout(2000)
async def test_two_gangs_that_compete_for_one_node_both_finish(
    new_namespace: Callable[[], Awaitable[Namespace]], cluster: testbed.ControlPlane
) -> None:
    nodes = cluster.add_kwok_nodes(NUM_TRIALS, gpus=gangs.NUM_GPUS)
    num_given_back = 0
    try:
        for _ in range(MOST_ROUNDS):
            pairs = await gangs.compete(await new_namespace(), cluster, nodes)
            assert sum(pair.num_restarts for pair in pairs) == 0
            num_given_back += sum(pair.num_given_back for pair in pairs)
            if num_given_back:
                break
    finally:
        cluster.kubectl("delete", "node", *nodes, "--wait=false")
    print(f"gangs were released {num_given_back} times")
    assert num_given_back > 0, "no two gangs competed, so this run shows nothing"


async def test_without_a_gang_scheduler_topology_is_an_affinity(
    namespace: Namespace, cluster: testbed.ControlPlane
) -> None:
    nodes = cluster.add_kwok_nodes(6, gpus=1)
    racks = {node: str(number % 2) for number, node in enumerate(nodes)}
    for node, rack in racks.items():
        cluster.kubectl("label", "node", node, f"rack={rack}")
    try:
        await namespace.apply(
            "near", nodes=3, gpusPerNode=1, scheduling={"topology": {"key": "rack", "mode": "required"}}
        )
        await namespace.reaches("near", "Running")
        assert len({racks[pod["spec"]["nodeName"]] for pod in (await namespace.pods()).values()}) == 1
    finally:
        cluster.kubectl("delete", "node", *nodes, "--wait=false")
