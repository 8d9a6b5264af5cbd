"""The real operator process on a real API server with KWOK nodes.

support/scripted_jobs.py has the jobs that succeed, restart and fail.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import testbed
from ddpjob_operator.kube.job_gauges import job_gauges
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.resources import DDPJOBS, PODS, SERVICES, Resource
from support.builders import environment
from support.operator_cluster import GARBAGE_COLLECTOR_SECONDS, Namespace
from support.operator_process import OperatorProcess
from testbed.kubectl import KubectlError

pytestmark = pytest.mark.usefixtures("operator_process")

NODES = Resource(prefix="/api/v1", plural="nodes")
QUOTAS = Resource(prefix="/api/v1", plural="resourcequotas")


def uids(objects: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: body["metadata"]["uid"] for name, body in objects.items()}


async def test_a_job_gets_a_service_and_pods_and_its_status_shows_its_progress_to_the_end(
    namespace: Namespace, cluster: testbed.ControlPlane
) -> None:
    await namespace.apply("j", nodes=2)
    status = await namespace.reaches("j", "Running")
    assert (status["ready"], status["image"]) == ("2/2", "trainer:1")
    for rank in range(2):
        env = environment((await namespace.pods())[f"j-1-{rank}"])
        assert env["MASTER_ADDR"] == f"j-master.{namespace.name}.svc"
        assert (env["WORLD_SIZE"], env["RANK"], env["LOCAL_RANK"]) == ("2", str(rank), "0")
        assert (env["PET_NNODES"], env["PET_NODE_RANK"]) == ("2", str(rank))
    service = (await namespace.services())["j-master"]["spec"]
    assert (service["clusterIP"], service["selector"]["ddpjob.dev/rank"]) == ("None", "0")

    def print_progress(step: int) -> None:
        line = json.dumps({"step": step, "totalSteps": 100, "epoch": 0, "loss": 0.5, "etaSeconds": 60})
        cluster.append_kwok_log(namespace.name, "j-1-0", f"epoch 0\nddpjob-progress {line}\nsome text\n")

    progress = {"step": 10, "totalSteps": 100, "epoch": 0, "loss": 0.5, "eta": "1m0s", "etaSeconds": 60}
    print_progress(10)
    await namespace.shows("j", progress=progress)
    print_progress(100)
    assert (await namespace.succeeds("j"))["progress"] == {**progress, "step": 100}


async def test_a_policy_that_rewrites_managed_by_changes_nothing(namespace: Namespace) -> None:
    await namespace.apply("j", nodes=2)
    await namespace.reaches("j", "Running")
    relabelled = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "policy"}}}
    for rank in range(2):
        await namespace.client.merge_patch(PODS, namespace.name, f"j-1-{rank}", relabelled)
    await namespace.succeeds("j")


async def test_a_job_that_is_applied_again_starts_once_the_pods_of_the_earlier_job_are_gone(
    namespace: Namespace,
) -> None:
    await namespace.apply("j")
    await namespace.reaches("j", "Running")
    await namespace.client.merge_patch(PODS, namespace.name, "j-1-0", {"metadata": {"finalizers": ["test/hold"]}})
    await namespace.delete_job("j")
    await namespace.apply("j")
    await namespace.shows("j", "of DDPJob j (uid")
    await namespace.client.merge_patch(PODS, namespace.name, "j-1-0", {"metadata": {"finalizers": None}})
    await namespace.reaches("j", "Running", seconds=GARBAGE_COLLECTOR_SECONDS)  # It deletes the Service.


async def test_an_operator_that_starts_again_writes_nothing_to_jobs_in_which_nothing_has_happened(
    client: Client, namespace: Namespace, operator_process: OperatorProcess
) -> None:
    await namespace.apply("runs", nodes=2)
    await namespace.apply("waits", suspend=True)
    await namespace.apply("done")
    await namespace.reaches("done", "Running")
    await namespace.ends("done-1-0", 0)
    for name, phase in (("runs", "Running"), ("waits", "Suspended"), ("done", "Succeeded")):
        await namespace.reaches(name, phase)

    async def versions() -> dict[str, str]:
        pages = [page for kind in (DDPJOBS, PODS, SERVICES) async for page in client.pages(kind, namespace.name)]
        metadata = [item["metadata"] for page in pages for item in page.items]
        return {data["uid"]: data["resourceVersion"] for data in metadata}

    async def starts_again(new: str) -> dict[str, str]:
        """The operator reconciles old jobs before new ones, so it has reconciled all of them when the new one runs."""
        operator_process.kill()
        operator_process.start()
        await namespace.apply(new)
        await namespace.reaches(new, "Running")
        return await versions()

    await namespace.has_pods(
        "the program of the job that is done to be over",
        lambda pods: bool(pods["done-1-0"]["status"]["phase"] == "Succeeded"),
    )
    uids_of_old = set(await versions())
    before = await starts_again("first")  # which writes what the killed operator had not written yet
    before = {uid: before[uid] for uid in uids_of_old}
    after = await starts_again("second")
    assert {uid: after.get(uid) for uid in before} == before


async def test_an_operator_of_one_namespace_ignores_the_others_and_stops_when_asked_to(
    client: Client,
    namespace: Namespace,
    cluster: testbed.ControlPlane,
    operator_process: OperatorProcess,
    tmp_path: Path,
) -> None:
    other = Namespace(client, "default")
    narrow = OperatorProcess(cluster.kubeconfig, tmp_path / "log", "--namespace", namespace.name)
    operator_process.stop()
    narrow.start()
    try:
        await other.apply("elsewhere")
        await namespace.apply("here")
        await namespace.reaches("here", "Running")
        assert await other.status("elsewhere") == {}
        await other.delete_job("elsewhere")
    finally:
        code = narrow.stop()
        operator_process.start()
    assert code == 0


async def test_probes_and_metrics(namespace: Namespace, operator_process: OperatorProcess) -> None:
    await namespace.apply("j")
    await namespace.reaches("j", "Running")
    assert operator_process.get("/livez") == "ok\n"
    assert operator_process.get("/readyz") == "ok\n"
    metrics = operator_process.get("/metrics")
    for line in (
        'ddpjob_api_requests_total{code="201",resource="pods",verb="create"}',
        'ddpjob_jobs{phase="Running"}',
        'workqueue_depth{controller="ddpjob",name="ddpjob"}',
        'ddpjob_watch_age_seconds{resource="pods"}',
        "process_resident_memory_bytes",
    ):
        assert line in metrics
    of_jobs = {gauge.name for gauge in job_gauges([], 1, 0.0) if gauge.name.startswith("ddpjob_job_")}
    assert of_jobs, "no gauge of single jobs is known"
    named = {line.partition("{")[0] for line in metrics.splitlines() if namespace.name in line}
    assert named <= of_jobs, "a label of another metric names an object"


async def test_kubectl_scale_starts_the_next_attempt_in_the_new_size(
    namespace: Namespace, cluster: testbed.ControlPlane
) -> None:
    def scale(nodes: int) -> str:
        return cluster.kubectl("scale", "ddpjob", "j", f"--replicas={nodes}", "-n", namespace.name)

    await namespace.apply("j", nodes=2)
    await namespace.reaches("j", "Running")
    for attempt, nodes in ((2, 3), (3, 1)):
        assert "scaled" in scale(nodes)
        status = await namespace.reaches("j", "Running", attempt=attempt)
        assert (status["ready"], status["replicas"]) == (f"{nodes}/{nodes}", nodes)
        assert (status["restarts"]["counted"], status["restarts"]["infrastructure"]) == (0, 0)
        found = await namespace.pods()  # also of the attempt before, whose programs have ended
        pods = {name: pod for name, pod in found.items() if name.startswith(f"j-{attempt}-")}
        assert set(pods) == {f"j-{attempt}-{rank}" for rank in range(nodes)}
        assert {environment(pod)["WORLD_SIZE"] for pod in pods.values()} == {str(nodes)}
    shown = json.loads(cluster.kubectl("get", "--raw", _scale_of("j", namespace)))
    assert (shown["spec"]["replicas"], shown["status"]["replicas"]) == (1, 1)
    selected = cluster.kubectl("get", "pods", "-n", namespace.name, "-l", shown["status"]["selector"], "-o", "name")
    assert "pod/j-3-0" in selected.split()
    with pytest.raises(KubectlError, match="greater than or equal to 1"):
        scale(0)


def _scale_of(job: str, namespace: Namespace) -> str:
    return f"/apis/ddpjob.dev/v1beta1/namespaces/{namespace.name}/ddpjobs/{job}/scale"


async def test_an_autoscaler_changes_the_number_of_nodes(namespace: Namespace, cluster: testbed.ControlPlane) -> None:
    """To the least number, for which it needs no metric."""
    await namespace.apply("j", nodes=1)
    await namespace.reaches("j", "Running")
    cluster.kubectl("autoscale", "ddpjob", "j", "--min=2", "--max=4", "--cpu=50%", "-n", namespace.name)
    status = await namespace.reaches("j", "Running", attempt=2, seconds=GARBAGE_COLLECTOR_SECONDS)
    assert status["ready"] == "2/2"
