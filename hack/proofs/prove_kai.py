"""The groups that KAI's pod-grouper makes of the pods of a DDPJob by `manifests/integrations/kai.yaml`.

    KAI=DIRECTORY pytest hack/proofs/prove_kai.py

The directory is the repository of KAI with the program `podgrouper` in it, and the CRD of Karta as
`run.ai_kartas.yaml`. The scheduler of KAI does not take part: the pods get no node.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import testbed
from ddpjob_operator.transport.resources import Resource
from support import REPOSITORY, installation
from support.operator_cluster import Namespace, eventually
from support.operator_process import OperatorProcess

pytest_plugins = ["support.operator_fixtures"]
pytestmark = pytest.mark.usefixtures("operator_process")

#: Of scheduling.run.ai.
GROUPS = Resource.of_version("scheduling.run.ai/v2alpha2", "podgroups")
KAI = {"metadata": {"labels": {"kai.scheduler/queue": "team-a"}}, "spec": {"schedulerName": "kai-scheduler"}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[testbed.ControlPlane]:
    """A control plane with the kinds of KAI and Karta, the description of DDPJobs, and the pod-grouper."""
    directory = Path(os.environ["KAI"]).resolve()
    with testbed.ControlPlane() as cluster:
        for crd in (*(directory / "deployments/kai-scheduler/crds").glob("*.yaml"), directory / "run.ai_kartas.yaml"):
            cluster.kubectl("apply", "--server-side", "-f", str(crd))
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=240s")
        cluster.kubectl("create", "namespace", "kai-scheduler")
        cluster.kubectl("apply", "-f", str(REPOSITORY / "manifests/integrations/kai.yaml"))
        health, metrics = testbed.free_ports(2)
        cluster.component(
            "kai-pod-grouper",
            f"--health-probe-bind-address=127.0.0.1:{health}",
            f"--metrics-bind-address=127.0.0.1:{metrics}",
            program=directory / "podgrouper",
            ready=lambda: cluster.answers(f"http://127.0.0.1:{health}/healthz"),
            environment={"KUBECONFIG": str(cluster.kubeconfig)},
        ).start()
        yield cluster


@pytest.fixture(scope="module")
def operator_process(
    cluster: testbed.ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """An operator without a provider: KAI's groups are made of the pods."""
    process = OperatorProcess(installation.install(cluster), tmp_path_factory.mktemp("operator") / "log")
    process.start()
    yield process
    process.stop()


async def groups(namespace: Namespace) -> dict[str, tuple[int, str]]:
    """By the attempt in their name, the least number of pods and the queue of the groups."""
    found = (await namespace.all(GROUPS)).items()
    return {name.rpartition("-")[2]: (group["spec"]["minMember"], group["spec"]["queue"]) for name, group in found}


@pytest.mark.parametrize(("min_nodes", "least"), [(None, 3), (2, 2)])
async def test_each_attempt_is_a_group_of_its_size(namespace: Namespace, min_nodes: int | None, least: int) -> None:
    """Also one that kubectl scale begins."""
    await namespace.apply("j", nodes=3, minNodes=min_nodes, template=KAI)

    async def has_first() -> bool:
        return await groups(namespace) == {"1": (least, "team-a")}

    await eventually("the group of the first attempt", has_first)
    pods = await namespace.has_pods(
        "all pods to name the group",
        lambda pods: sum("pod-group-name" in pod["metadata"]["annotations"] for pod in pods.values()) == 3,
    )
    assert len({pod["metadata"]["annotations"]["pod-group-name"] for pod in pods.values()}) == 1
    await namespace.edit("j", nodes=4)

    async def has_second() -> bool:
        return (await groups(namespace)).get("2") == (4 if min_nodes is None else min_nodes, "team-a")

    await eventually("the group of the second attempt", has_second)
