"""GPUs by Dynamic Resource Allocation: claims of devices that a template makes, on KWOK nodes with slices written by hand."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

import testbed
from ddpjob_operator.transport.resources import Resource
from support.operator_cluster import Namespace, eventually, kwok_nodes

pytestmark = pytest.mark.usefixtures("operator_process")

CLASS = "gpu.example.com"
CLAIMS = Resource(prefix="/apis/resource.k8s.io/v1", plural="resourceclaims")
#: Of a job whose pods have one device each.
ONE_DEVICE: dict[str, Any] = {
    "processesPerNode": 1,
    "template": {
        "spec": {
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
            "containers": [{"name": "trainer", "resources": {"claims": [{"name": "gpu"}]}}],
        }
    },
}


def device_class() -> dict[str, Any]:
    selector = {"cel": {"expression": f"device.driver == '{CLASS}'"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": CLASS},
        "spec": {"selectors": [selector]},
    }


def resource_slice(node: str) -> dict[str, Any]:
    """What the driver of a node with one device publishes."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": node},
        "spec": {"driver": CLASS, "nodeName": node, "pool": pool, "devices": [{"name": "gpu-0"}]},
    }


def claim_template(namespace: str) -> dict[str, Any]:
    request = {"name": "gpu", "exactly": {"deviceClassName": CLASS}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one-gpu", "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


@pytest.fixture
async def space(cluster: testbed.ControlPlane, namespace: Namespace) -> AsyncIterator[Namespace]:
    """The test's namespace, on a cluster in which two nodes have one device each."""
    cluster.kubectl.apply(device_class())
    cluster.kubectl.apply(claim_template(namespace.name))
    with kwok_nodes(cluster, 2, gpus=0) as nodes:
        for node in nodes:
            cluster.kubectl.apply(resource_slice(node))
        yield namespace
        cluster.kubectl("delete", "resourceslice", *nodes)


async def owners_of_claims(space: Namespace) -> set[str]:
    """The pods that claims were made for."""
    claims = (await space.all(CLAIMS)).values()
    return {owner["name"] for claim in claims for owner in claim["metadata"]["ownerReferences"]}


async def has_claims_of(space: Namespace, *pods: str) -> None:
    async def there() -> bool:
        return await owners_of_claims(space) == set(pods)

    await eventually(f"claims of {pods} alone", there)


async def test_claims_go_with_their_attempt_and_a_job_that_gets_no_device_has_the_words_of_the_scheduler(
    space: Namespace,
) -> None:
    await space.apply("one", nodes=2, **ONE_DEVICE)
    await space.reaches("one", "Running")
    await has_claims_of(space, "one-1-0", "one-1-1")
    await space.ends("one-1-1", 1)
    await space.reaches("one", "Running", attempt=2)
    assert "one-1-1" in await space.pods(), "evidence"
    await has_claims_of(space, "one-2-0", "one-2-1")

    await space.apply("two", **ONE_DEVICE)
    message = (await space.shows("two", "1 of 1 pods have no node: "))["message"]
    # Tests that ran before may have left nodes.
    assert re.search(r"nodes are available: \d+ cannot allocate all claims$", message)
    await space.succeeds("one", attempt=2)
    await space.reaches("two", "Running")
    await has_claims_of(space, "two-1-0")


async def test_a_job_whose_claims_cannot_be_made_says_what_it_waits_for(space: Namespace) -> None:
    template = {"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "none"}]}}
    await space.apply("j", processesPerNode=1, template=template)
    await space.shows("j", "waits for their claims, so these must exist in the namespace: ResourceClaimTemplate none")
