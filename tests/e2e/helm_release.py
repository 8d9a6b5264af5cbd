"""The release that the end-to-end tests and `make demo-cluster` install."""

from pathlib import Path

import testbed
from testbed import images

REPOSITORY = Path(__file__).parents[2]
RELEASE, SYSTEM_NAMESPACE = "ddpjob-operator", "ddpjob-system"


def load_images(cluster: testbed.Cluster) -> None:
    """Build both images and put them on every node, under the names that the chart uses by default."""
    for target in ("operator", "trainer"):
        images.load(images.build(target), cluster)


def install(cluster: testbed.Cluster | testbed.ExternalCluster) -> None:
    """Install the operator as the README says."""
    chart = REPOSITORY / "charts/ddpjob-operator"
    helm(cluster, "upgrade", "--install", RELEASE, chart, "--create-namespace", "--wait", "--timeout=180s")


def helm(cluster: testbed.Cluster | testbed.ExternalCluster, *arguments: str | Path) -> str:
    """Run helm in the operator's namespace and give what it printed."""
    return cluster.helm(*arguments, f"--namespace={SYSTEM_NAMESPACE}")
