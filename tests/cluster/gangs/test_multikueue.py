"""A job that the real MultiKueue runs on another cluster.

Its adapter for kinds that it does not know (`pkg/controller/admissionchecks/multikueue/externalframeworks/adapter.go`) copies the job
and mirrors the status. It goes by a Workload that another controller creates for the job, whose place the test takes.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

import testbed
from ddpjob_operator.api import names
from ddpjob_operator.transport.access import load_access
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.resources import DDPJOBS
from support import REPOSITORY
from support.gang_providers import KUEUE_API
from support.operator_cluster import Namespace, eventually
from support.operator_process import OperatorProcess
from testbed import kueue

CRD = REPOSITORY / "manifests/crd"
MULTIKUEUE = "kueue.x-k8s.io/multikueue"
FRAMEWORK = f"{names.KIND}.{names.API_VERSION.partition('/')[2]}.{names.GROUP}"
QUEUE = "team-a"


@dataclass(frozen=True, slots=True)
class Clusters:
    """The cluster to which users submit, and the one that runs their jobs. Each has Kueue and an operator."""

    manager: testbed.ControlPlane
    worker: testbed.ControlPlane


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    with ExitStack() as stack:
        both = Clusters(stack.enter_context(testbed.ControlPlane()), stack.enter_context(testbed.ControlPlane()))
        for cluster in (both.manager, both.worker):
            cluster.kubectl("apply", "--server-side", "-f", str(CRD))
            cluster.wait_served("ddpjobs.ddpjob.dev")
            cluster.kubectl.apply(rights())
            kueue.start(cluster, multiKueue={"externalFrameworks": [{"name": FRAMEWORK}]})
            operator = OperatorProcess(cluster.kubeconfig, tmp_path_factory.mktemp("operator") / "log")
            operator.start()
            stack.callback(operator.stop)
        both.worker.add_kwok_nodes(2, gpus=1)
        connect(both)
        yield both


def rights() -> list[dict[str, Any]]:
    """The rights of `docs/how-to/shared-clusters.md`, which the chart of Kueue lacks for kinds that it does not know."""
    api, name = "rbac.authorization.k8s.io", {"name": "kueue-ddpjobs"}
    rules = [
        {"apiGroups": [names.GROUP], "resources": ["ddpjobs"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [names.GROUP], "resources": ["ddpjobs/status"], "verbs": ["update", "patch"]},
    ]
    account = {"kind": "ServiceAccount", "name": kueue.ACCOUNT, "namespace": kueue.NAMESPACE}
    role = {"apiGroup": api, "kind": "ClusterRole", **name}
    return [
        {"apiVersion": f"{api}/v1", "kind": "ClusterRole", "metadata": name, "rules": rules},
        {
            "apiVersion": f"{api}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": name,
            "roleRef": role,
            "subjects": [account],
        },
    ]


def connect(clusters: Clusters) -> None:
    """The same queue on both, of which that of the manager is MultiKueue's."""
    kubeconfig = clusters.worker.kubectl("config", "view", "--raw", "--flatten", "--output=json")
    secret = {"name": "worker", "namespace": "kueue-system"}
    check = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": "all"}
    clusters.manager.kubectl.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": secret, "stringData": {"kubeconfig": kubeconfig}},
        kueue_object(
            "MultiKueueCluster",
            "worker",
            clusterSource={"kubeConfig": {"location": "worker", "locationType": "Secret"}},
        ),
        kueue_object("MultiKueueConfig", "all", clusters=["worker"]),
        kueue_object("AdmissionCheck", "multikueue", controllerName=MULTIKUEUE, parameters=check),
    )
    checked: dict[str, Any] = {"admissionChecksStrategy": {"admissionChecks": [{"name": "multikueue"}]}}
    more: dict[str, Any]
    for cluster, more in ((clusters.manager, checked), (clusters.worker, {})):
        quota = {"name": "default", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 2}]}
        groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": [quota]}]
        cluster.kubectl.apply(
            kueue_object("ResourceFlavor", "default"),
            kueue_object("ClusterQueue", "all", namespaceSelector={}, resourceGroups=groups, **more),
            kueue_object("LocalQueue", QUEUE, "default", clusterQueue="all"),
        )


def kueue_object(kind: str, name: str, namespace: str | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": KUEUE_API, "kind": kind, "metadata": metadata, "spec": spec}


def workload_of(job: dict[str, Any], nodes: int) -> dict[str, Any]:
    """What another controller creates for a job, so that MultiKueue runs it."""
    container = {"name": "ranks", "image": "any", "resources": {"requests": {"nvidia.com/gpu": "1"}}}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    workload = kueue_object(
        "Workload", "j", "default", queueName=QUEUE, podSets=[{"name": "main", "count": nodes, "template": template}]
    )
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "j", "uid": job["metadata"]["uid"]}
    workload["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    return workload


@pytest.fixture
async def submitted(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Namespace]:
    """The namespace in which users have their jobs."""
    async with await client_of(clusters.manager, monkeypatch) as client:
        yield Namespace(client, "default")


@pytest.fixture
async def copied(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Namespace]:
    """The namespace in which their copies run."""
    async with await client_of(clusters.worker, monkeypatch) as client:
        yield Namespace(client, "default")


async def client_of(cluster: testbed.ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    return Client((await load_access()).configuration)


@pytest.mark.nightly
@pytest.mark.timeout(900)
async def test_the_status_of_a_job_that_runs_on_another_cluster_is_mirrored(
    clusters: Clusters, submitted: Namespace, copied: Namespace
) -> None:
    job = await submitted.apply("j", nodes=2, gpusPerNode=1, managedBy=MULTIKUEUE)
    clusters.manager.kubectl.apply(workload_of(job, nodes=2))
    await submitted.reaches("j", "Running")
    assert "managedBy" not in (await copied.job("j"))["spec"]
    assert set(await copied.pods()) == {"j-1-0", "j-1-1"}

    await copied.ends("j-1-1", 1, "ValueError: boom")
    status = await submitted.reaches("j", "Running", attempt=2)
    assert (status["restarts"]["counted"], status["failure"]["exitCode"]) == (1, 1)
    await copied.succeeds("j", attempt=2)
    await submitted.reaches("j", "Succeeded", attempt=2)

    async def is_equal() -> bool:
        return await submitted.status("j") == await copied.status("j")

    await eventually("the whole status to be mirrored", is_equal)
    assert (await submitted.pods(), set(await submitted.services())) == ({}, {"kubernetes"})

    await submitted.delete_job("j")
    await copied.loses(DDPJOBS, "j")
