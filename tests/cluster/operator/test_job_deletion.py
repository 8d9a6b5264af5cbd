"""The operator deletes the pods of a deleted job with one request; the garbage collector would delete one after the other."""

import contextlib
import os
import re
import signal
from collections.abc import Iterator

import testbed
from ddpjob_operator.transport.resources import DDPJOBS, PODS
from support.operator_cluster import Namespace, eventually
from support.operator_process import OperatorProcess


def num_collections_deleted(operator: OperatorProcess) -> int:
    pattern = r'^ddpjob_api_requests_total{code="200",resource="pods",verb="deletecollection"} (\S+)$'
    return sum(round(float(value)) for value in re.findall(pattern, operator.get("/metrics"), re.MULTILINE))


@contextlib.contextmanager
def without_garbage_collector(cluster: testbed.ControlPlane) -> Iterator[None]:
    """The garbage collector, which deletes the same pods, does not run in here."""
    pid = cluster.components["kube-controller-manager"].pid
    assert pid is not None, "it runs"
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_pods_of_a_deleted_job_go_at_once(
    cluster: testbed.ControlPlane, namespace: Namespace, operator_process: OperatorProcess
) -> None:
    await namespace.apply("j", nodes=6)
    await namespace.apply("k", nodes=2)
    await namespace.reaches("j", "Running")
    await namespace.reaches("k", "Running")
    before = num_collections_deleted(operator_process)
    with without_garbage_collector(cluster):
        await namespace.delete_job("j")
        await namespace.has_pods("the pods of j to go, and no others", lambda pods: set(pods) == {"k-1-0", "k-1-1"})
    await eventually(  # It is counted once it is answered.
        "one request for all pods of j", lambda: num_collections_deleted(operator_process) == before + 1
    )
    assert (await namespace.status("k"))["phase"] == "Running"


async def test_pods_stay_where_the_job_is_deleted_without_them(
    namespace: Namespace, operator_process: OperatorProcess
) -> None:
    await namespace.apply("j", nodes=2)
    await namespace.reaches("j", "Running")
    before = num_collections_deleted(operator_process)
    uid = (await namespace.job("j"))["metadata"]["uid"]
    await namespace.client.delete(DDPJOBS, namespace.name, "j", uid=uid, propagation="Orphan")
    await namespace.loses(DDPJOBS, "j")
    # A later job of the same operator runs: by then it has dealt with the earlier event.
    await namespace.apply("k", nodes=1)
    await namespace.reaches("k", "Running")
    pods = await namespace.pods()
    assert {"j-1-0", "j-1-1"} <= set(pods)
    assert not any("deletionTimestamp" in pod["metadata"] for pod in pods.values())
    assert num_collections_deleted(operator_process) == before


async def test_a_foreground_deletion_waits_for_the_pods(
    namespace: Namespace,
    operator_process: OperatorProcess,  # noqa: ARG001 it creates the pods
) -> None:
    await namespace.apply("j", nodes=1)
    await namespace.apply("k", nodes=1)
    await namespace.reaches("j", "Running")
    await namespace.reaches("k", "Running")
    hold = {"metadata": {"finalizers": ["test/hold"]}}
    await namespace.client.merge_patch(PODS, namespace.name, "j-1-0", hold)
    for name in ("j", "k"):
        uid = (await namespace.job(name))["metadata"]["uid"]
        await namespace.client.delete(DDPJOBS, namespace.name, name, uid=uid, propagation="Foreground")
    await namespace.loses(DDPJOBS, "k")  # Its deletion came later: the garbage collector has seen that of j.
    assert "deletionTimestamp" in (await namespace.job("j"))["metadata"]
    await namespace.client.merge_patch(PODS, namespace.name, "j-1-0", {"metadata": {"finalizers": None}})
    await namespace.loses(DDPJOBS, "j")
