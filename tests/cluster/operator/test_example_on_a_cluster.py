"""The example digits.yaml on KWOK nodes: it starts, restarts after a failure and ends, on each release of `make matrix`."""

import os
import re

import pytest

import testbed
from support import REPOSITORY
from support.operator_cluster import Namespace

pytestmark = pytest.mark.usefixtures("operator_process")


async def test_digits_runs_restarts_and_succeeds(cluster: testbed.ControlPlane, namespace: Namespace) -> None:
    example = REPOSITORY / "manifests" / "examples" / "digits.yaml"
    text = re.sub(r"namespace: \S+", f"namespace: {namespace.name}", example.read_text())
    cluster.kubectl("apply", "-n", namespace.name, "-f", "-", stdin=text)
    await namespace.reaches("digits", "Running")
    await namespace.ends("digits-1-1", 1, "out of luck")
    status = await namespace.reaches("digits", "Running", attempt=2)
    assert (status["restarts"]["counted"], status["failure"]["rank"]) == (1, 1)
    for name in list(await namespace.pods()):
        if name.startswith("digits-2-"):
            await namespace.ends(name, 0)
    await namespace.reaches("digits", "Succeeded", attempt=2)


def test_the_control_plane_is_of_the_release_that_was_asked_for(cluster: testbed.ControlPlane) -> None:
    version = cluster.kubectl.json("version")["serverVersion"]
    assert f"{version['major']}.{version['minor']}" == os.environ.get("TESTBED_KUBERNETES", "1.37")
