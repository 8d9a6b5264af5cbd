"""Jobs in the network of their nodes, whose ports they share with all others on these nodes."""

import pytest

from support.operator_cluster import Namespace

pytestmark = pytest.mark.usefixtures("operator_process")


async def test_jobs_with_ports_of_their_own_share_a_node_and_a_job_with_a_port_in_use_says_so(
    namespace: Namespace,
) -> None:
    await namespace.apply("one", template={"spec": {"hostNetwork": True}})
    await namespace.reaches("one", "Running")
    pod = (await namespace.pods())["one-1-0"]
    node = pod["spec"]["nodeName"]
    (port,) = (entry["hostPort"] for entry in pod["spec"]["containers"][0]["ports"])
    on_the_same_node = {"spec": {"hostNetwork": True, "nodeSelector": {"kubernetes.io/hostname": node}}}

    await namespace.apply("two", template=on_the_same_node)
    await namespace.reaches("two", "Running")

    await namespace.apply("three", template=on_the_same_node, masterPort=port)
    await namespace.shows("three", "free ports")
