"""Fixtures of the tests with the real operator process: make-believe nodes, an operator for a module, a namespace for each test."""

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

import testbed
from ddpjob_operator.transport.access import load_access
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.resources import Resource
from operator_cluster import Namespace, OperatorProcess, eventually

SERVICE_ACCOUNTS = Resource(prefix="/api/v1", plural="serviceaccounts")
NAMESPACES = Resource(prefix="/api/v1", plural="namespaces")
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cluster(ddpjob_crd: testbed.ControlPlane) -> testbed.ControlPlane:
    """A control plane that knows DDPJobs and has nodes for their pods."""
    ddpjob_crd.add_kwok_nodes(2)
    return ddpjob_crd


@pytest.fixture(scope="module")
def operator_process(
    cluster: testbed.ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """The operator, ready; only while a module asks for it, since it acts on every DDPJob of the cluster."""
    log = tmp_path_factory.mktemp("operator") / "log"
    process = OperatorProcess(cluster.kubeconfig, log)
    process.start()
    yield process
    process.stop()


@pytest.fixture
async def client(cluster: testbed.ControlPlane, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """The operator's own client, as an administrator."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    async with Client((await load_access()).configuration) as client:
        yield client


@pytest.fixture
async def namespace(client: Client) -> Namespace:
    """A namespace of the test's own."""
    name = f"operator-{next(_numbers)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await client.create(NAMESPACES, None, body)
    namespace = Namespace(client, name)
    # Admission refuses pods before it is there.
    await eventually("the default service account", lambda: namespace.find(SERVICE_ACCOUNTS, "default"))
    return namespace
