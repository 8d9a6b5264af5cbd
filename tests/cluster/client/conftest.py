"""The fixtures of the operator's tests, and a client in the namespace of the test."""

from collections.abc import AsyncIterator

import pytest

import testbed
from ddpjob.client import AsyncClient
from support.operator_cluster import Namespace
from support.operator_fixtures import client, cluster, namespace, operator_process

__all__ = ["client", "cluster", "namespace", "operator_process", "sdk"]


@pytest.fixture
async def sdk(cluster: testbed.ControlPlane, namespace: Namespace) -> AsyncIterator[AsyncClient]:
    """A client of the test's namespace."""
    async with AsyncClient(kubeconfig=str(cluster.kubeconfig), namespace=namespace.name) as sdk:
        yield sdk
