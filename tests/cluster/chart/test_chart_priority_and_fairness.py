"""With `priorityAndFairness.enabled` a real API server counts the operator's requests apart from those of other accounts."""

import ssl
import urllib.error
import urllib.request

import testbed
from support.chart_render import RELEASE

LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
PODS = "/api/v1/namespaces/{}/pods"


def level_of(cluster, namespace, account, path):
    """The name of the priority level that the API server gives a request of this account."""
    control_plane = cluster.control_plane
    token = cluster.kubectl("create", "token", account, "-n", namespace).strip()
    request = urllib.request.Request(  # noqa: S310 an address of our own
        control_plane.server + path.format(namespace), headers={"Authorization": f"Bearer {token}"}
    )
    trust = ssl.create_default_context(cafile=str(control_plane.keys / "ca.crt"))
    try:
        with urllib.request.urlopen(request, timeout=30, context=trust) as answer:  # noqa: S310 as above
            uid = answer.headers["X-Kubernetes-PF-PriorityLevel-UID"]
    except urllib.error.HTTPError as error:  # whether it may is not the question here
        uid = error.headers["X-Kubernetes-PF-PriorityLevel-UID"]
    levels = cluster.kubectl.json("get", "prioritylevelconfigurations")["items"]
    return {level["metadata"]["uid"]: level["metadata"]["name"] for level in levels}[uid]


def test_the_operators_requests_have_their_own_level_and_its_lease_that_of_leases(cluster):
    namespace = cluster.namespace()
    cluster.install(namespace, {"priorityAndFairness": {"enabled": True}})
    testbed.wait_for(
        "the API server to use the FlowSchemas",
        lambda: (
            (
                level_of(cluster, namespace, RELEASE, PODS),
                level_of(cluster, namespace, RELEASE, LEASES),
                level_of(cluster, namespace, "default", PODS),
            )
            == (RELEASE, "leader-election", "workload-low")
        ),
    )
