"""A cluster of two real nodes with the real images and the operator installed by helm, once for the whole run.

`E2E_KUBECONFIG` names another cluster to use instead, which has the images under the chart's names already; tests that
break nodes or signal processes of the machine are skipped there.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import testbed
from support.helm_release import install, load_images
from support.job_on_cluster import JobOnCluster, fresh_namespace

AnyCluster = testbed.Cluster | testbed.ExternalCluster


@pytest.fixture(scope="session", autouse=True)
def _root() -> None:
    """Without root these tests are skipped, unless they use another cluster."""
    if os.geteuid() != 0 and "E2E_KUBECONFIG" not in os.environ:
        pytest.skip("real nodes and images need root; or name another cluster in E2E_KUBECONFIG")


@pytest.fixture(scope="session")
def cluster() -> Iterator[AnyCluster]:
    """The cluster that the tests run on."""
    if other := os.environ.get("E2E_KUBECONFIG"):
        yield testbed.ExternalCluster(Path(other))
        return
    with testbed.Cluster(nodes=2) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def installed_operator(cluster: AnyCluster) -> None:
    """The operator, installed as the README says, with the images on every node."""
    install(cluster, load_images(cluster) if isinstance(cluster, testbed.Cluster) else ())


@pytest.fixture
def namespace(cluster: AnyCluster, installed_operator: None) -> Iterator[str]:  # noqa: ARG001 the operator is there before
    """A new namespace for the test."""
    with fresh_namespace(cluster.kubectl) as name:
        yield name


@pytest.fixture(scope="session")
def machine(cluster: AnyCluster) -> testbed.Cluster:
    """The cluster where its machine can be reached, for faults injected from outside."""
    if isinstance(cluster, testbed.ExternalCluster):
        pytest.skip("E2E_KUBECONFIG names a cluster whose nodes cannot be broken from here")
    return cluster


@pytest.fixture
def job(cluster: AnyCluster, namespace: str) -> Iterator[JobOnCluster]:
    """A job to apply; its status, pods, Events and logs are printed after the test."""
    job = JobOnCluster(cluster.kubectl, namespace)
    yield job
    print(job.report())
