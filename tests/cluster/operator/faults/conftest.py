"""A control plane whose API server may be killed and audits all writes, and a fault proxy in front of it."""

from collections.abc import Iterator

import pytest

import testbed
from support import REPOSITORY
from testbed.faultproxy import FaultProxy

MANIFESTS = REPOSITORY / "manifests"
#: A DDPJob, what it owns, and the operator's Lease.
AUDITED = {
    "": ("pods", "services", "events"),
    "ddpjob.dev": ("ddpjobs", "ddpjobs/status"),
    "coordination.k8s.io": ("leases",),
}


@pytest.fixture(scope="session")
def cluster() -> Iterator[testbed.ControlPlane]:
    """A control plane for these tests alone: others would fail when its API server is killed."""
    with testbed.ControlPlane(audited=AUDITED) as control_plane:
        control_plane.kubectl("apply", "--server-side", "-f", str(MANIFESTS / "crd"))
        control_plane.wait_served("ddpjobs.ddpjob.dev")
        control_plane.add_kwok_nodes(2)
        yield control_plane


@pytest.fixture(scope="session")
def running_proxy(cluster: testbed.ControlPlane) -> Iterator[FaultProxy]:
    """The proxy, with the rules of earlier tests."""
    with FaultProxy(cluster, seed=1) as proxy:
        yield proxy


@pytest.fixture
def proxy(running_proxy: FaultProxy) -> Iterator[FaultProxy]:
    """The proxy, without rules before and after the test."""
    running_proxy.clear()
    yield running_proxy
    running_proxy.clear()
