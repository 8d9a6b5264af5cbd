"""The test bed's control plane and its KWOK nodes.

Tests of ddpjob on it prove the rest: service accounts and admission (cluster/api, cluster/chart), logs, deletions and a
restart of the API server (cluster/operator).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import testbed
from testbed.kubectl import Kubectl

TESTS = Path(__file__).parents[2]


def test_a_component_that_cannot_start_is_named_with_its_output_or_its_deadline(
    control_plane: testbed.ControlPlane,
) -> None:
    doomed = control_plane.component("doomed", "--no-such-flag", program="kwok", ready=lambda: False)
    with pytest.raises(testbed.ComponentError, match=r"(?s)doomed ended with code 1.*no-such-flag"):
        doomed.start()
    doomed.command, doomed.ready_seconds = ["sleep", "60"], 0.2
    with pytest.raises(testbed.ComponentError, match=r"timed out after 0\.2 s waiting for doomed to be ready"):
        doomed.start()
    doomed.kill()


def test_a_cluster_made_by_the_command_line_outlives_it_until_down() -> None:
    name = f"cli-{os.getpid()}"

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "testbed", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=240).stdout

    try:
        kubeconfig = run("up", "--name", name).splitlines()[-1].removeprefix("export KUBECONFIG=")
        assert f"{name}: running" in run("status")
        again = run("up", "--name", name).splitlines()
        assert again == [f"export KUBECONFIG={kubeconfig}"]
        assert "default" in Kubectl(Path(kubeconfig))("get", "namespaces")
    finally:
        run("down", "--name", name)
    assert name not in run("status")
