"""Two gangs that each hold a part of the GPUs that both need: without a release they would wait for each other forever."""

import asyncio
import contextlib

import pytest

import testbed
from ddpjob_operator.transport.errors import ApiError
from operator_cluster import Namespace, eventually

pytestmark = pytest.mark.usefixtures("operator_process")

NUM_TRIALS = 8
#: Of each of two jobs, and of the one node that they compete for.
NUM_GPUS = 4
SECONDS = 280.0


async def finish_what_runs(namespace: Namespace, names: list[str]) -> bool:
    """End the programs of each gang that is whole. Gives whether all jobs have ended."""
    phases = {name: (await namespace.status(name)).get("phase") for name in names}
    for name, pod in (await namespace.pods()).items():
        job = name.rsplit("-", 2)[0]
        if phases[job] == "Running" and "testbed/exit-code" not in pod["metadata"].get("annotations", {}):
            with contextlib.suppress(ApiError):  # Gone meanwhile.
                await namespace.ends(name, 0)
    return set(phases.values()) == {"Succeeded"}


@pytest.mark.timeout(400)
async def test_two_gangs_that_compete_for_one_node_both_finish(
    namespace: Namespace, cluster: testbed.ControlPlane
) -> None:
    nodes = cluster.add_kwok_nodes(NUM_TRIALS, gpus=NUM_GPUS)
    names = []
    for number, node in enumerate(nodes):
        here = {"spec": {"nodeSelector": {"kubernetes.io/hostname": node}}}
        pair = [f"a{number}", f"b{number}"]
        await asyncio.gather(*(namespace.apply(name, nodes=NUM_GPUS, gpusPerNode=1, template=here) for name in pair))
        names += pair
    try:
        await eventually("all jobs to succeed", lambda: finish_what_runs(namespace, names), SECONDS)
    finally:
        cluster.kubectl("delete", "node", *nodes, "--wait=false")
    ends = [await namespace.status(name) for name in names]
    assert all(end["restarts"]["counted"] == end["restarts"]["infrastructure"] == 0 for end in ends)
    num_given_back = sum(end["attempt"] - 1 for end in ends)
    print(f"in {NUM_TRIALS} trials gangs were released {num_given_back} times")
    assert num_given_back > 0, "no two gangs competed, so this run shows nothing"
