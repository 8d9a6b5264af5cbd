"""Two tenants in two namespaces of a real API server, one of them hostile: what it tries has no effect on the other's job.

What hostile logs become is tested in tests/unit/core/test_untrusted.py and, with strangers who connect to ranks, on real nodes.
"""

import pytest

from ddpjob_operator.api import names
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.resources import PODS, SERVICES, Resource
from support.operator_cluster import Namespace, eventually

pytestmark = pytest.mark.usefixtures("operator_process")

ENDPOINT_SLICES = Resource.of_version("discovery.k8s.io/v1", "endpointslices")


@pytest.fixture
async def hostile(new_namespace) -> Namespace:
    """The namespace of the hostile tenant; the other one's is `namespace`."""
    return await new_namespace()


async def test_a_pod_with_the_labels_and_the_owner_of_another_namespace_s_rank_is_no_rank(
    client: Client, namespace: Namespace, hostile: Namespace
) -> None:
    """It would replace the rank, end the job, or have its log read into the other tenant's status."""
    await namespace.apply("train", nodes=2)
    await namespace.reaches("train", "Running")
    rank0 = (await namespace.pods())["train-1-0"]
    copied = {key: rank0["metadata"][key] for key in ("name", "labels", "annotations", "ownerReferences")}
    image = {"name": "trainer", "image": "hostile:1"}
    copied["annotations"] |= {"testbed/exit-code": "1", "testbed/exit-message": "RuntimeError: stolen"}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": copied,
        "spec": {"containers": [image], "restartPolicy": "Never"},
    }
    await client.create(PODS, hostile.name, body)
    await hostile.has_pods(  # or the garbage collector has missed its owner
        "the impostor to fail", lambda pods: all(pod["status"]["phase"] == "Failed" for pod in pods.values())
    )
    assert "stolen" not in str(await namespace.succeeds("train"))


async def test_the_master_name_of_another_namespace_can_be_neither_taken_nor_pointed_to(
    client: Client, namespace: Namespace, hostile: Namespace
) -> None:
    """A job of the same name has a Service of its own, and no selector finds pods of another namespace."""
    for tenant in (namespace, hostile):
        await tenant.apply("train")
        await tenant.reaches("train", "Running")
    selectors = [(await tenant.services())["train-master"]["spec"]["selector"] for tenant in (namespace, hostile)]
    uids = [(await tenant.job("train"))["metadata"]["uid"] for tenant in (namespace, hostile)]
    assert [selector[names.LABEL_JOB_UID] for selector in selectors] == uids

    stolen = {"spec": {"selector": {**selectors[0]}}}
    await client.merge_patch(SERVICES, hostile.name, "train-master", stolen)

    async def is_repaired() -> bool:
        return bool((await hostile.services())["train-master"]["spec"]["selector"] == selectors[1])

    await eventually("the operator to point the Service at its own job again", is_repaired)

    async def leads_to_its_own_pod() -> bool:
        slices = [item async for page in client.pages(ENDPOINT_SLICES, hostile.name) for item in page.items]
        targets = [endpoint["targetRef"] for item in slices for endpoint in item.get("endpoints") or ()]
        assert {target["namespace"] for target in targets} <= {hostile.name}
        return [target["name"] for target in targets] == ["train-1-0"]

    await eventually("the Service to lead to its own pod alone", leads_to_its_own_pod)
