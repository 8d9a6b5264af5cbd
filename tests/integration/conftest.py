"""A real Kubernetes control plane for all integration tests of one run."""

from collections.abc import Iterator

import pytest

import testbed


@pytest.fixture(scope="session")
def control_plane() -> Iterator[testbed.ControlPlane]:
    """One control plane for the whole run: tests keep apart by using a namespace each."""
    with testbed.ControlPlane() as control_plane:
        yield control_plane
