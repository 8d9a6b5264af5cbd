"""The real operator, with the arguments and the rights that the chart gives it and no others, takes a job to its end.

In the namespaced scope it also has the admission policy, which refuses nothing that a job needs.
"""

import json
import re

import pytest

import testbed
from support.chart_render import RELEASE, operator_arguments
from support.operator_process import OperatorProcess

JOB = {
    "apiVersion": "ddpjob.dev/v1beta1",
    "kind": "DDPJob",
    "metadata": {"name": "two"},
    "spec": {"nodes": 2, "command": ["python", "train.py"], "ttlSecondsAfterFinished": 1},
}


@pytest.fixture
def run_operator(cluster, tmp_path):
    """Start the operator as the service account of `namespace`, wait until it is ready, give the path of its log."""
    processes = []

    def run(namespace, values):
        kubeconfig = cluster.control_plane.kubeconfig_of_account(namespace, RELEASE)
        process = OperatorProcess(kubeconfig, tmp_path / "log", *operator_arguments(values, namespace))
        processes.append(process)
        process.start()
        return process.log

    yield run
    for process in processes:
        process.kill()


def refused_requests(cluster):
    """How many requests the API server has refused for want of a right, from anybody: `no-opinion` is RBAC's no."""
    metrics = cluster.kubectl("get", "--raw", "/metrics")
    counters = re.findall(
        r'^authorization_attempts_total\{result="(?:denied|no-opinion)"\} (\d+)$', metrics, re.MULTILINE
    )
    return sum(map(int, counters))


@pytest.mark.parametrize(
    ("scope", "has_policies"),
    [
        pytest.param("cluster", True, id="cluster"),
        pytest.param("namespaces", True, id="namespaces"),
        pytest.param("namespaces", False, id="namespaces, without rights on NetworkPolicies"),
    ],
)
def test_a_job_is_created_restarted_finished_and_removed(cluster, run_operator, scope, has_policies):
    home, team, other = cluster.namespace(), cluster.namespace(), cluster.namespace()
    values = {
        "watch": {"namespaces": [team] if scope == "namespaces" else []},
        "operator": {"progressIntervalSeconds": 1},
        "admissionPolicy": {"enabled": scope == "namespaces"},
    }
    cluster.install(home, {**values, "networkPolicy": {"jobs": has_policies}})
    cluster.wait_for_crd()
    account = f"system:serviceaccount:{home}:{RELEASE}"
    for verb, resource, where in (
        ("list", "ddpjobs.ddpjob.dev", team),
        ("create", "pods", team),
        ("get", "nodes", None),
    ):
        cluster.wait_for_right(account, verb, resource, where)
    refused = refused_requests(cluster)
    log = run_operator(home, values)
    for namespace in (team, other):
        cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(JOB))

    def status():
        return cluster.kubectl.json("get", "ddpjob", "two", "-n", team).get("status", {})

    def reaches(phase, attempt):
        def there():
            return (status().get("phase"), status().get("attempt", 1)) == (phase, attempt)

        try:
            testbed.wait_for(f"the job to be {phase} in attempt {attempt}", there)
        except testbed.DeadlineError as error:
            pytest.fail(f"{error}; its status: {status()}; the operator's log: {log.read_text()[-3000:]}")

    def end(code, *pods):
        cluster.kubectl("annotate", "pod", *pods, f"testbed/exit-code={code}", "-n", team)

    reaches("Running", 1)
    assert cluster.exists("networkpolicy", "two-ranks", "-n", team) is has_policies
    assert log.read_text().count("jobs get no NetworkPolicies: this operator may not create, delete,") == (
        not has_policies
    )
    end(1, "two-1-1")
    reaches("Running", 2)
    end(0, "two-2-0", "two-2-1")
    gone = ("ddpjob", "two", "-n", team)
    testbed.wait_for("the finished job to be removed by its TTL", lambda: not cluster.exists(*gone))
    service = ("service", "two-master", "-n", other)
    if scope == "cluster":
        testbed.wait_for("the job in the other namespace to have its Service", lambda: cluster.exists(*service))
    else:
        assert not cluster.exists(*service)
    assert refused_requests(cluster) == refused, log.read_text()
