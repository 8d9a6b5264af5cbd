"""The program of `helm test`, with the rights of its service account, on a real API server. The test is its operator."""

import json
import subprocess
import sys

import pytest

import testbed
from support.chart_cluster import Cluster
from support.chart_render import CHART, find, identity, of_test, render

SCRIPT = CHART / "files" / "smoke_test.py"


@pytest.fixture
def namespace(cluster: Cluster) -> str:
    namespace = cluster.namespace()
    cluster.install_crd()
    return namespace


@pytest.fixture
def start(cluster: Cluster, namespace: str, tmp_path):
    """Start the script as its pod would: its job, its service account's token; give the process."""
    rendered = of_test(render({}, namespace=namespace))
    cluster.kubectl.apply([item for item in rendered if identity(item)[0] in ("ServiceAccount", "Role", "RoleBinding")])
    kubeconfig = cluster.control_plane.kubeconfig_of_account(namespace, "ddpjob-operator-test")
    (tmp_path / "job.json").write_text(find(rendered, "ConfigMap")["data"]["job.json"])
    processes = []

    def start(*, deadline_seconds: float) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, SCRIPT, tmp_path / "job.json", "--deadline-seconds", str(deadline_seconds)],
            env={"KUBECONFIG": str(kubeconfig), "PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def jobs(cluster, namespace):
    return cluster.kubectl("get", "ddpjobs", "-n", namespace, "--output=name").split()


def report(cluster, namespace, phase, message, *, condition=None):
    """Write the job's status as the operator would."""
    (job,) = testbed.wait_for("the script's job", lambda: jobs(cluster, namespace))
    status = {"phase": phase, "ready": "2/2", "message": message, "conditions": []}
    if condition:
        status["conditions"] = [
            {
                "type": condition,
                "status": "True",
                "reason": "Succeeded",
                "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ]
    patch = json.dumps({"status": status})
    cluster.kubectl("patch", job, "-n", namespace, "--subresource=status", "--type=merge", f"--patch={patch}")


def test_the_program_in_the_chart_is_the_one_tested_here():
    assert find(of_test(render()), "ConfigMap")["data"]["smoke_test.py"].strip() == SCRIPT.read_text().strip()


@pytest.mark.parametrize(
    ("phase", "message", "code", "printed"),
    [
        ("Succeeded", "all 2 ranks ended", 0, "Succeeded · 2/2 · all 2 ranks ended"),
        ("Failed", "rank 1: exit code 1", 1, '"message": "rank 1: exit code 1"'),
    ],
)
def test_the_script_ends_with_the_job_and_deletes_it(cluster, namespace, start, phase, message, code, printed):
    process = start(deadline_seconds=600)
    report(cluster, namespace, phase, message, condition=phase)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == code, output
    assert printed in output
    assert not jobs(cluster, namespace)


def test_a_job_that_does_not_end_is_reported_at_the_deadline(cluster, namespace, start):
    process = start(deadline_seconds=40)
    report(cluster, namespace, "Pending", "pod helm-test-1-0: no node has 250m CPUs")
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 1, output
    assert "Pending · 2/2 · pod helm-test-1-0: no node has 250m CPUs" in output
    assert "neither succeeded nor failed within 40 s" in output
    assert not jobs(cluster, namespace)
