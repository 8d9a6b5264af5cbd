"""The test bed's control plane and its KWOK nodes.

Tests of ddpjob on it prove the rest: service accounts and admission (cluster/api, cluster/chart), logs, deletions and a
restart of the API server (cluster/operator).
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import testbed
from testbed.kubectl import Kubectl

TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def kwok_nodes(control_plane: testbed.ControlPlane) -> list[str]:
    return control_plane.add_kwok_nodes(2, gpus=8)


def pod(name: str, namespace: str, **annotations: str) -> dict[str, object]:
    marked = {f"testbed/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": marked},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "x"}]},
    }


def state(kubectl: Kubectl, namespace: str, name: str) -> dict[str, Any]:
    status = kubectl.json("get", "pod", name, "-n", namespace)["status"]
    (container,) = status.get("containerStatuses") or [{"state": {}}]
    return {"phase": status["phase"], **container["state"]}


@pytest.mark.usefixtures("kwok_nodes")
def test_a_pod_on_a_kwok_node_does_what_its_annotations_say(
    control_plane: testbed.ControlPlane, bare_namespace: str
) -> None:
    kubectl = control_plane.kubectl
    kubectl.apply(
        pod("runs", bare_namespace),
        pod("succeeds", bare_namespace, exit_code="0"),
        pod("fails", bare_namespace, exit_code="3", exit_message="ValueError: no"),
        pod("waits", bare_namespace, pending="true"),
    )

    def settled() -> bool:
        return [state(kubectl, bare_namespace, name)["phase"] for name in ("runs", "succeeds", "fails", "waits")] == [
            "Running",
            "Succeeded",
            "Failed",
            "Pending",
        ]

    testbed.wait_for("all four pods to be in their phase", settled, seconds=240)
    terminated = state(kubectl, bare_namespace, "fails")["terminated"]
    assert isinstance(terminated, dict)
    assert (terminated["exitCode"], terminated["reason"], terminated["message"]) == (3, "Error", "ValueError: no")
    assert "waiting" in state(kubectl, bare_namespace, "waits")

    kubectl("patch", "pod/runs", "-n", bare_namespace, "--patch", '{"spec": {"activeDeadlineSeconds": 1}}')
    kubectl(
        "wait", "--for=jsonpath={.status.reason}=DeadlineExceeded", "pod/runs", "-n", bare_namespace, "--timeout=240s"
    )
    stopped = state(kubectl, bare_namespace, "runs")
    assert (stopped["phase"], stopped["terminated"]["exitCode"]) == ("Failed", 143)


def test_a_pod_group_is_served_only_where_gang_scheduling_is_asked_for(control_plane: testbed.ControlPlane) -> None:
    versions = "api-versions"
    assert "scheduling.k8s.io/v1alpha2" not in control_plane.kubectl(versions).split()
    # A second control plane next to the first.
    with testbed.ControlPlane(gang_scheduling=True) as gangs:
        assert "scheduling.k8s.io/v1alpha2" in gangs.kubectl(versions).split()
        assert gangs.server != control_plane.server


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
