"""A control plane of the chart's own: its tests install and remove the CRD, which all namespaces share."""

from collections.abc import Iterator

import pytest

import testbed
from support.chart_cluster import Cluster


@pytest.fixture(scope="session")
def _chart_control_plane() -> Iterator[testbed.ControlPlane]:
    with testbed.ControlPlane() as control_plane:
        control_plane.add_kwok_nodes(1)
        yield control_plane


@pytest.fixture
def cluster(_chart_control_plane: testbed.ControlPlane) -> Iterator[Cluster]:
    """A cluster without the CRD and without any release, and so again after the test."""
    cluster = Cluster(_chart_control_plane)
    yield cluster
    cluster.clean_up()
