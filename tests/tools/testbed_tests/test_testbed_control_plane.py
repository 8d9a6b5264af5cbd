"""The test bed's control plane is a real one, and ends with whoever made it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import testbed
from testbed.kubectl import Kubectl, KubectlError

TESTS = Path(__file__).parents[1]


@pytest.fixture
def namespace(control_plane: testbed.ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.replace("_", "-")[:50].rstrip("-")
    control_plane.kubectl("create", "namespace", name)
    account = ("get", "serviceaccount", "default", "-n", name, "--ignore-not-found", "-o", "name")
    testbed.wait_for(f"the ServiceAccount of {name}", lambda: control_plane.kubectl(*account), seconds=10)
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false")


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


def state(kubectl: Kubectl, namespace: str, name: str) -> dict[str, object]:
    status = kubectl.json("get", "pod", name, "-n", namespace)["status"]
    (container,) = status.get("containerStatuses") or [{"state": {}}]
    return {"phase": status["phase"], **container["state"]}


def test_a_service_account_may_do_what_its_role_says_and_nothing_else(
    control_plane: testbed.ControlPlane, namespace: str
) -> None:
    kubectl = control_plane.kubectl
    kubectl("create", "role", "reader", "--verb=list", "--resource=pods", "-n", namespace)
    kubectl(
        "create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={namespace}:default", "-n", namespace
    )
    token = kubectl("create", "token", "default", "-n", namespace).strip()

    assert (
        kubectl("get", "pods", "-n", namespace, f"--token={token}", "--kubeconfig=/dev/null", *server(control_plane))
        == ""
    )
    with pytest.raises(KubectlError, match="Forbidden"):
        kubectl("get", "secrets", "-n", namespace, f"--token={token}", "--kubeconfig=/dev/null", *server(control_plane))


def server(control_plane: testbed.ControlPlane) -> tuple[str, str]:
    return f"--server={control_plane.server}", f"--certificate-authority={control_plane.keys / 'ca.crt'}"


def test_a_restricted_namespace_refuses_a_pod_that_may_be_root(
    control_plane: testbed.ControlPlane, namespace: str
) -> None:
    control_plane.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    with pytest.raises(KubectlError, match="violates PodSecurity"):
        control_plane.kubectl.apply(pod("root", namespace))


@pytest.mark.usefixtures("kwok_nodes")
def test_a_pod_on_a_kwok_node_does_what_its_annotations_say(
    control_plane: testbed.ControlPlane, namespace: str
) -> None:
    kubectl = control_plane.kubectl
    kubectl.apply(
        pod("runs", namespace),
        pod("succeeds", namespace, exit_code="0"),
        pod("fails", namespace, exit_code="3", exit_message="ValueError: no"),
        pod("waits", namespace, pending="true"),
    )

    def settled() -> bool:
        return [state(kubectl, namespace, name)["phase"] for name in ("runs", "succeeds", "fails", "waits")] == [
            "Running",
            "Succeeded",
            "Failed",
            "Pending",
        ]

    testbed.wait_for("all four pods to be in their phase", settled, seconds=20)
    terminated = state(kubectl, namespace, "fails")["terminated"]
    assert isinstance(terminated, dict)
    assert (terminated["exitCode"], terminated["reason"], terminated["message"]) == (3, "Error", "ValueError: no")
    assert "waiting" in state(kubectl, namespace, "waits")

    kubectl("patch", "pod/runs", "-n", namespace, "--patch", '{"spec": {"activeDeadlineSeconds": 1}}')
    kubectl("wait", "--for=jsonpath={.status.reason}=DeadlineExceeded", "pod/runs", "-n", namespace, "--timeout=20s")
    stopped = state(kubectl, namespace, "runs")
    assert (stopped["phase"], stopped["terminated"]["exitCode"]) == ("Failed", 143)


def test_a_kwok_node_gives_signs_of_life(control_plane: testbed.ControlPlane, kwok_nodes: list[str]) -> None:
    def holders() -> dict[str, str]:
        leases = control_plane.kubectl.json("get", "leases", "-n", "kube-node-lease")["items"]
        return {lease["metadata"]["name"]: lease["spec"].get("renewTime") for lease in leases}

    testbed.wait_for("each node's Lease", lambda: all(holders().get(node) for node in kwok_nodes), seconds=30)


@pytest.mark.usefixtures("kwok_nodes")
def test_a_deleted_pod_on_a_kwok_node_goes(control_plane: testbed.ControlPlane, namespace: str) -> None:
    control_plane.kubectl.apply(pod("runs", namespace), pod("waits", namespace, pending="true"))
    control_plane.kubectl(
        "wait", "--for=jsonpath={.status.phase}=Running", "pod/runs", "-n", namespace, "--timeout=20s"
    )
    control_plane.kubectl("delete", "pods", "--all", "-n", namespace, "--timeout=20s")


@pytest.mark.usefixtures("kwok_nodes")
def test_a_log_given_to_a_pod_on_a_kwok_node_is_served(control_plane: testbed.ControlPlane, namespace: str) -> None:
    control_plane.kubectl.apply(pod("speaks", namespace))
    control_plane.kubectl("wait", "--for=condition=Ready", "pod/speaks", "-n", namespace, "--timeout=20s")
    control_plane.append_kwok_log(namespace, "speaks", "first")
    control_plane.append_kwok_log(namespace, "speaks", "second\nthird")
    assert control_plane.kubectl("logs", "speaks", "-n", namespace, "--tail=2") == "second\nthird\n"


def test_a_pod_group_is_served_only_where_gang_scheduling_is_asked_for(control_plane: testbed.ControlPlane) -> None:
    versions = "api-versions"
    assert "scheduling.k8s.io/v1alpha2" not in control_plane.kubectl(versions).split()
    # A second control plane beside the first.
    with testbed.ControlPlane(gang_scheduling=True) as gangs:
        assert "scheduling.k8s.io/v1alpha2" in gangs.kubectl(versions).split()
        assert gangs.server != control_plane.server


def test_a_killed_api_server_can_be_started_again(control_plane: testbed.ControlPlane) -> None:
    api_server = control_plane.components["kube-apiserver"]
    api_server.kill()
    with pytest.raises(KubectlError, match="refused"):
        control_plane.kubectl("get", "namespaces")
    api_server.start()
    assert "default" in control_plane.kubectl("get", "namespaces")


def test_a_component_that_ends_is_named_with_its_last_words(control_plane: testbed.ControlPlane) -> None:
    doomed = control_plane.component("doomed", "--no-such-flag", program="kwok", ready=lambda: False)
    with pytest.raises(testbed.ComponentError, match=r"(?s)doomed ended with code 1.*no-such-flag"):
        doomed.start()


def test_a_component_that_is_not_ready_in_time_is_named_with_the_deadline(control_plane: testbed.ControlPlane) -> None:
    late = control_plane.component("late", "--help", program="pki", ready=lambda: False)
    late.command, late.ready_seconds = ["sleep", "60"], 0.2
    with pytest.raises(testbed.ComponentError, match=r"waited 0\.2 s for late to be ready"):
        late.start()
    late.kill()


def test_a_cluster_made_by_the_command_line_outlives_it_until_down() -> None:
    name = f"cli-{os.getpid()}"

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "testbed", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout

    try:
        kubeconfig = run("up", "--name", name).splitlines()[-1].removeprefix("export KUBECONFIG=")
        assert f"{name}: running" in run("status")
        again = run("up", "--name", name).splitlines()
        assert again == [f"export KUBECONFIG={kubeconfig}"]
        assert "default" in Kubectl(Path(kubeconfig))("get", "namespaces")
    finally:
        run("down", "--name", name)
    assert name not in run("status")
