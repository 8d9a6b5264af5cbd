"""The NetworkPolicy of a job on a real API server. That it keeps strangers out is tested on real nodes, in tests/e2e."""

from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.resources import Resource
from support.operator_cluster import Namespace, eventually
from support.operator_process import OperatorProcess

POLICIES = Resource.of_version("networking.k8s.io/v1", "networkpolicies")


async def test_a_job_has_its_policy_until_it_opts_out_and_gets_it_again_where_somebody_deletes_it(
    client: Client, namespace: Namespace, operator_process: OperatorProcess
) -> None:
    assert operator_process.running
    job = await namespace.apply("j", nodes=2)
    await namespace.reaches("j", "Running")
    first = await namespace.find(POLICIES, "j-ranks")
    assert first is not None
    (owner,) = first["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (job["metadata"]["uid"], True)

    await client.delete(POLICIES, namespace.name, "j-ranks", uid=first["metadata"]["uid"])

    async def another() -> bool:
        found = await namespace.find(POLICIES, "j-ranks")
        return found is not None and found["metadata"]["uid"] != first["metadata"]["uid"]

    await eventually("a new policy", another)
    await namespace.edit("j", networkPolicy=False)
    await namespace.loses(POLICIES, "j-ranks")
    assert (await namespace.status("j"))["attempt"] == 1, "the pods are not replaced for it"


async def test_a_policy_of_the_same_name_that_is_somebody_else_s_is_reported_and_no_pod_is_open_meanwhile(
    client: Client, namespace: Namespace, operator_process: OperatorProcess
) -> None:
    assert operator_process.running
    squatter = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "j-ranks", "namespace": namespace.name},
        "spec": {"podSelector": {}, "ingress": [{}]},
    }
    made = await client.create(POLICIES, namespace.name, squatter)
    await namespace.apply("j")
    await namespace.shows("j", "j-ranks")
    assert await namespace.pods() == {}
    await client.delete(POLICIES, namespace.name, "j-ranks", uid=made["metadata"]["uid"])
    await namespace.edit("j", deadlines={"startSeconds": 601})  # a reconcile at once, instead of after the back-off
    await namespace.reaches("j", "Running")
