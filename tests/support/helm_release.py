"""The release that the end-to-end tests and `make demo-cluster` install."""

import json
from collections.abc import Sequence
from pathlib import Path

import testbed
from support import REPOSITORY
from support.images import build
from testbed import images
from testbed.kubectl import KubectlError

RELEASE, SYSTEM_NAMESPACE = "ddpjob-operator", "ddpjob-system"


def load_images(cluster: testbed.Cluster) -> list[str]:
    """Build both images and put them on every node, under the names that the chart uses by default.

    Gives the arguments of helm that make a running operator take the new image, whose name is the same.
    """
    operator, trainer = build("operator"), build("trainer")
    for image in (operator, trainer):
        images.load(image, cluster)
    return ["--set-string", f"podAnnotations.image-key={operator.key[:12]}"]


def install(cluster: testbed.Cluster | testbed.ExternalCluster, options: Sequence[str] = ()) -> None:
    """Install the operator as the README says."""
    chart = REPOSITORY / "charts/ddpjob-operator"
    helm(cluster, "upgrade", "--install", RELEASE, chart, "--create-namespace", "--wait", "--timeout=300s", *options)
    testbed.wait_for("the API server to accept DDPJobs as owners", lambda: _accepts_owner(cluster))


def _accepts_owner(cluster: testbed.Cluster | testbed.ExternalCluster) -> bool:
    """Whether a DDPJob may own an object. An admission plugin learns about a new kind some seconds after it is served."""
    owner = {"apiVersion": "ddpjob.dev/v1beta1", "kind": "DDPJob", "name": "x", "uid": "x", "blockOwnerDeletion": True}
    metadata = {"name": "owner", "namespace": "default", "ownerReferences": [owner]}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    try:
        cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(body))
    except KubectlError:
        return False
    return True


def helm(cluster: testbed.Cluster | testbed.ExternalCluster, *arguments: str | Path) -> str:
    """Run helm in the operator's namespace and give what it printed."""
    return cluster.helm(*arguments, f"--namespace={SYSTEM_NAMESPACE}")
