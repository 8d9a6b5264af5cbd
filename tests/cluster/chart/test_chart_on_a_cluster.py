"""What an installed chart does on a real API server."""

import json

import pytest

import testbed
from ddpjob_operator.api.names import API_VERSION, KIND
from support import REPOSITORY, documents
from support.chart_cluster import CRD
from support.chart_render import installed, render

EVERYTHING = "all,serviceaccounts,configmaps,secrets,roles,rolebindings,clusterroles,clusterrolebindings,customresourcedefinitions"


def operator_of(namespace):
    return f"system:serviceaccount:{namespace}:ddpjob-operator"


def test_install_test_and_uninstall_in_a_restricted_namespace(cluster):
    namespace = cluster.namespace()
    # This annotation makes the KWOK node end the pod of `helm test`; the operator's pod does not have it.
    cluster.install(namespace, {"commonAnnotations": {"testbed/exit-code": "0"}}, "--wait")
    assert "Phase:          Succeeded" in cluster.helm("test", "ddpjob-operator", "--namespace", namespace)
    assert not cluster.exists("pod,serviceaccount,role,configmap", "ddpjob-operator-test", "-n", namespace)

    cluster.uninstall(namespace)
    mine = "--selector=app.kubernetes.io/instance=ddpjob-operator"
    only_the_crd = [f"customresourcedefinition.apiextensions.k8s.io/{CRD}"]

    def left():
        return cluster.kubectl("get", EVERYTHING, mine, "--all-namespaces", "--output=name").split()

    # The garbage collector takes the pod a moment after the Deployment.
    testbed.wait_for("all but the CRD to be gone", lambda: left() == only_the_crd)


def test_the_plain_manifests_install_the_operator_and_leave_the_jobs(cluster):
    folder = REPOSITORY / "manifests/operator"
    job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "kept"}, "spec": {"command": ["true"]}}
    try:
        documents.run(folder / "README.md", "api-server", documents.cluster_variables(cluster.control_plane.kubeconfig))
        assert cluster.may(operator_of("ddpjob-system"), "create", "pods", "default")
        cluster.kubectl("create", "-n", "default", "-f", "-", stdin=json.dumps(job))
    finally:
        cluster.kubectl("delete", "-f", str(folder), "--ignore-not-found", "--wait", "--timeout=240s")
    assert cluster.exists("ddpjob", "kept", "-n", "default")


def test_a_failed_test_is_reported_and_leaves_nothing(cluster):
    namespace = cluster.namespace()
    cluster.install(namespace, {"commonAnnotations": {"testbed/exit-code": "1"}})
    with pytest.raises(Exception, match="ddpjob-operator-test"):
        cluster.helm("test", "ddpjob-operator", "--namespace", namespace)
    assert not cluster.exists("pod,serviceaccount,role,configmap", "ddpjob-operator-test", "-n", namespace)


def test_the_operator_works_where_it_watches_and_nowhere_else(cluster):
    home, watched, other = cluster.namespace(), cluster.namespace(), cluster.namespace()
    cluster.install(home, {"watch": {"namespaces": [watched]}})
    operator = operator_of(home)
    cluster.wait_for_right(operator, "list", "ddpjobs.ddpjob.dev", watched)
    cluster.wait_for_right(operator, "get", "nodes")
    for verb, resource in (
        ("list", "ddpjobs.ddpjob.dev"),
        ("create", "pods"),
        ("get", "pods/log"),
        ("patch", "ddpjobs.ddpjob.dev/status"),
    ):
        seen = [cluster.may(operator, verb, resource, namespace) for namespace in (watched, other, home)]
        assert seen == [True, False, False], (verb, resource)
    assert cluster.may(operator, "get", "nodes")
    assert not cluster.may(operator, "list", "nodes")
    assert not cluster.may(operator, "get", "secrets", watched)
    assert not cluster.may(operator, "list", "pods")


@pytest.mark.parametrize(
    ("role", "verbs"),
    [("view", ["get"]), ("edit", ["get", "create", "delete"]), ("admin", ["get", "create", "delete"])],
)
def test_the_built_in_roles_cover_ddpjobs(cluster, role, verbs):
    namespace = cluster.namespace()
    cluster.install(namespace)
    cluster.wait_for_crd()
    cluster.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}er", "-n", namespace)

    def rights():
        tried = ("get", "create", "delete", "approve")
        return [verb for verb in tried if cluster.may(f"{role}er", verb, "ddpjobs.ddpjob.dev", namespace)]

    # The controller manager puts aggregated roles together a moment after the install.
    testbed.wait_for(f"{role} to cover {verbs} of ddpjobs", lambda: rights() == verbs)


@pytest.mark.parametrize("values", [{}, {"replicas": 2}])
def test_what_a_dry_run_shows_is_what_is_installed(cluster, values):
    """The API server accepts every object as rendered: no field is unknown to it."""
    namespace = cluster.namespace()
    for item in installed(render(values, namespace=namespace)):
        if item["kind"] != "CustomResourceDefinition":
            cluster.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=json.dumps(item))
