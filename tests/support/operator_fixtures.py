"""Fixtures of tests with the real operator: KWOK nodes, an operator for a module, and for each test a namespace and a Lease."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import testbed
from ddpjob_operator.transport.access import load_access
from ddpjob_operator.transport.client import Client
from support.operator_cluster import LEASE_SECONDS, Namespace, create_namespace
from support.operator_process import OperatorProcess

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
    """The operator, ready; only while a module uses it, since it acts on every DDPJob of the cluster."""
    log = tmp_path_factory.mktemp("operator") / "log"
    process = OperatorProcess(cluster.kubeconfig, log, "--progress-interval-seconds", "1", "--job-gauges", "20")
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
    """A new namespace for the test."""
    return await _new_namespace(client)


@pytest.fixture
def new_namespace(client: Client) -> Callable[[], Awaitable[Namespace]]:
    """A function that makes another namespace."""
    return lambda: _new_namespace(client)


async def _new_namespace(client: Client) -> Namespace:
    return await create_namespace(client, f"operator-{next(_numbers)}")


@pytest.fixture
def leased_operator(
    cluster: testbed.ControlPlane, namespace: Namespace, tmp_path: Path
) -> Iterator[Callable[..., OperatorProcess]]:
    """A function that makes operators for the test's namespace, which share a Lease there. They are not started."""
    processes: list[OperatorProcess] = []

    def make(
        identity: str, *more: str, lease_seconds: int = LEASE_SECONDS, kubeconfig: Path = cluster.kubeconfig
    ) -> OperatorProcess:
        arguments = (*more, "--namespace", namespace.name, "--lease", f"{namespace.name}/operator")
        arguments += ("--identity", identity, "--lease-seconds", str(lease_seconds))
        processes.append(OperatorProcess(kubeconfig, tmp_path / f"{identity}.log", *arguments))
        return processes[-1]

    yield make
    for process in processes:
        if process.running:
            process.kill()
