"""A control plane with gang scheduling, on which an operator uses one provider after the other."""

from collections.abc import AsyncIterator, Iterator

import pytest

import testbed
from support.gang_providers import PROVIDERS, Places, Provider
from support.installation import install
from support.operator_cluster import Namespace
from support.operator_fixtures import client, namespace, new_namespace
from support.operator_process import OperatorProcess

__all__ = ["client", "namespace", "new_namespace"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[testbed.ControlPlane]:
    """A control plane of its own, since operators of other tests would find the providers on a shared one."""
    with testbed.ControlPlane(gang_scheduling=True, node_monitor_grace_seconds=600) as cluster:
        priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        values = {"high": 1000, "low": -1000}
        cluster.kubectl.apply(
            [{**priority, "metadata": {"name": name}, "value": value} for name, value in values.items()]
        )
        yield cluster


@pytest.fixture(scope="module", params=PROVIDERS, ids=lambda provider: provider.name)
def provider(request: pytest.FixtureRequest) -> Provider:
    """What schedules the gangs of the test."""
    given: Provider = request.param
    return given


@pytest.fixture(scope="module")
def operator_process(
    cluster: testbed.ControlPlane, provider: Provider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """An operator that discovers the provider, since the chart gives it the rights for no other."""
    if provider.start is not None and provider.name not in cluster.components:
        provider.start(cluster)
    kubeconfig = install(cluster, scheduling_provider=provider.name)
    process = OperatorProcess(kubeconfig, tmp_path_factory.mktemp("operator") / "log")
    process.start()
    yield process
    process.stop()


@pytest.fixture
async def places(
    cluster: testbed.ControlPlane,
    provider: Provider,
    namespace: Namespace,
    operator_process: OperatorProcess,  # noqa: ARG001 it runs the jobs
) -> AsyncIterator[Places]:
    """What the gangs of the test get their places from. There are none yet."""
    places = provider.places(namespace, cluster)
    await places.open()
    yield places
    await places.close()
