"""Gangs and the real cluster autoscaler.

    AUTOSCALER=PROGRAM pytest hack/proofs/prove_node_autoscaling.py

The program is that of `cluster_autoscaler.py`, which the test bed cannot build, because its module is not on the Go module proxy.
`README.md` says with which version the proof ran last.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import testbed
from proofs import cluster_autoscaler
from support import installation
from support.operator_cluster import Namespace, eventually
from support.operator_process import OperatorProcess

pytest_plugins = ["support.operator_fixtures"]
pytestmark = pytest.mark.usefixtures("operator_process")

#: A gang of which a part has nodes releases them after 45 s at most, then 90, then 180, unless it waits for nodes.
HOLD_MINUTES = 3
HOLD_SECONDS = 420.0
#: The autoscaler considers pods with GPUs that are 30 s old, and the operator reads Events every 10 to 60 s.
ANNOUNCED_SECONDS = 420.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[testbed.ControlPlane]:
    """A control plane of its own, since the autoscaler adds nodes for the pods of everybody."""
    with testbed.ControlPlane() as cluster:
        cluster_autoscaler.start(cluster, Path(os.environ["AUTOSCALER"]), {"large": 2, "small": 1})
        yield cluster


@pytest.fixture(scope="module")
def operator_process(
    cluster: testbed.ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """An operator that knows no scheduler of gangs, with the rights of the chart."""
    process = OperatorProcess(installation.install(cluster), tmp_path_factory.mktemp("operator") / "log")
    process.start()
    yield process
    process.stop()


async def submit(namespace: Namespace, cluster: testbed.ControlPlane, pool: str, nodes: int) -> None:
    """A job whose rank 0 finds a node that exists, and all others need nodes of the autoscaler."""
    (node,) = cluster.add_kwok_nodes(1, gpus=1)
    cluster.kubectl("label", "node", node, f"pool={pool}")
    await namespace.apply("j", nodes=nodes, gpusPerNode=1, template={"spec": {"nodeSelector": {"pool": pool}}})


@pytest.mark.timeout(1200)
async def test_a_gang_keeps_its_places_until_the_nodes_that_were_announced_are_there(
    namespace: Namespace, cluster: testbed.ControlPlane
) -> None:
    """The autoscaler waits 30 s for pods with GPUs, so a gang may release its places before the first announcement."""
    await submit(namespace, cluster, "large", nodes=3)
    waits = await namespace.shows("j", "waiting for node autoscaling", seconds=ANNOUNCED_SECONDS)
    # Without the announcement it would release its node before that.
    waited = f"waiting for node autoscaling since {HOLD_MINUTES}m: 2 of 3 pods"
    status = await namespace.shows("j", waited, seconds=HOLD_SECONDS)
    assert status["attempt"] == waits["attempt"]
    cluster_autoscaler.make_ready(cluster, "large")
    await namespace.reaches("j", "Running", attempt=waits["attempt"])
    assert len(cluster_autoscaler.nodes_of(cluster, "large")) == 2


@pytest.mark.timeout(1200)
async def test_a_gang_for_which_the_autoscaler_adds_too_few_nodes_releases_its_places(
    namespace: Namespace, cluster: testbed.ControlPlane
) -> None:
    """It announces a node for one pod, and then that it has none for the other."""
    await submit(namespace, cluster, "small", nodes=3)

    async def is_refused() -> bool:
        events = cluster.kubectl("get", "events", "-n", namespace.name, "-o", "custom-columns=:.reason").split()
        return {"TriggeredScaleUp", "NotTriggerScaleUp"} <= set(events)

    await eventually("the autoscaler to announce a node, and to refuse another", is_refused, ANNOUNCED_SECONDS)
    attempt = (await namespace.status("j"))["attempt"]

    async def releases() -> bool:
        return bool((await namespace.status("j"))["attempt"] > attempt)

    await eventually("the gang to release its node", releases, HOLD_SECONDS)
