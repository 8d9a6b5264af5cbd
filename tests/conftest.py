"""A real Kubernetes control plane for all tests of one run that need one."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import REPOSITORY
from support.longest_first import LongestFirst

if TYPE_CHECKING:
    import testbed

# A training keeps decoded images in the folder of the same name: no test may find what another run has decoded.
_chosen = os.environ.pop("DDPJOB_CACHE_DIR", None) or os.environ.get("TESTBED_CACHE_DIR")
CACHE = _chosen or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ddpjob")
os.environ.setdefault("TESTBED_CACHE_DIR", str(CACHE))


def pytest_configure(config: pytest.Config) -> None:
    """Files that took longest the last time start first."""
    config.pluginmanager.register(LongestFirst(Path(CACHE) / "seconds-of-test-files.json"))


@pytest.fixture(scope="session")
def control_plane() -> Iterator["testbed.ControlPlane"]:
    """One control plane for the whole run: tests keep apart by using a namespace each."""
    import testbed  # a fifth of a second, which unit tests do without

    with testbed.ControlPlane() as control_plane:
        yield control_plane


@pytest.fixture(scope="session")
def ddpjob_crd(control_plane: "testbed.ControlPlane") -> "testbed.ControlPlane":
    """The control plane with the DDPJob type installed and served."""
    control_plane.kubectl("apply", "--server-side", "-f", str(REPOSITORY / "manifests/crd"))
    control_plane.wait_served("ddpjobs.ddpjob.dev")
    return control_plane


@pytest.fixture
def bare_namespace(control_plane: "testbed.ControlPlane") -> Iterator[str]:
    """The name of a namespace of the test's own, deleted behind it without waiting."""
    import testbed

    name = f"test-{uuid.uuid4().hex[:8]}"
    control_plane.kubectl("create", "namespace", name)
    testbed.wait_for(  # admission refuses pods before it is there
        f"the default service account of {name}",
        lambda: control_plane.kubectl("get", "serviceaccounts", "-n", name, "-o", "name"),
        seconds=120,
    )
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false")
