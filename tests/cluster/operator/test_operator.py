"""The real operator process, on a real API server with make-believe nodes."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

import testbed
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ApiError
from ddpjob_operator.transport.resources import DDPJOBS, PODS, SERVICES, Resource
from operator_cluster import Namespace, OperatorProcess, eventually

pytestmark = pytest.mark.usefixtures("operator_process")

NODES = Resource(prefix="/api/v1", plural="nodes")
QUOTAS = Resource(prefix="/api/v1", plural="resourcequotas")


def environment(pod: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in pod["spec"]["containers"][0]["env"]}


def uids(objects: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: body["metadata"]["uid"] for name, body in objects.items()}


async def selected_attempt(namespace: Namespace, job: str) -> str:
    service = (await namespace.services())[f"{job}-master"]
    return str(service["spec"]["selector"]["ddpjob.dev/attempt"])


async def test_a_job_gets_its_service_and_its_pods_with_the_group_s_environment(namespace: Namespace) -> None:
    await namespace.apply("j", nodes=2)
    status = await namespace.reaches("j", "Running")
    pods = await namespace.pods()
    assert set(pods) == {"j-1-0", "j-1-1"}
    for rank in range(2):
        env = environment(pods[f"j-1-{rank}"])
        assert env["MASTER_ADDR"] == f"j-master.{namespace.name}.svc"
        assert (env["WORLD_SIZE"], env["RANK"], env["LOCAL_RANK"]) == ("2", str(rank), "0")
        assert (env["PET_NNODES"], env["PET_NODE_RANK"]) == ("2", str(rank))
    service = (await namespace.services())["j-master"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"]["ddpjob.dev/rank"] == "0"
    assert (status["ready"], status["image"]) == ("2/2", "trainer:1")


async def test_one_failed_rank_restarts_the_whole_gang(namespace: Namespace) -> None:
    await namespace.apply("j", nodes=2)
    await namespace.reaches("j", "Running")
    await namespace.ends("j-1-1", 3, "ValueError: boom")
    status = await namespace.reaches("j", "Running", attempt=2)
    failure = status["failure"]
    assert (failure["rank"], failure["exitCode"], failure["pod"]) == (1, 3, "j-1-1")
    assert "ValueError: boom" in failure["message"]
    assert status["restarts"]["counted"] == 1

    async def only_the_failed_pod_is_kept() -> bool:
        return set(await namespace.pods()) == {"j-1-1", "j-2-0", "j-2-1"}

    await eventually("the survivor to go and the failed pod to stay", only_the_failed_pod_is_kept)
    assert await selected_attempt(namespace, "j") == "2"


async def test_too_many_failures_fail_the_job_which_keeps_its_stopped_survivor(namespace: Namespace) -> None:
    await namespace.apply("j", nodes=2, restart={"maxRestarts": 1})
    for attempt in (1, 2):
        await namespace.reaches("j", "Running", attempt)
        await namespace.ends(f"j-{attempt}-0", 1)
    status = await namespace.reaches("j", "Failed", attempt=2)
    assert status["completionTime"]

    async def only_evidence() -> bool:
        phases = {name: pod["status"]["phase"] for name, pod in (await namespace.pods()).items()}
        return phases == dict.fromkeys(("j-1-0", "j-2-0", "j-2-1"), "Failed")

    await eventually("the survivor of the last attempt to be stopped, and its pod to be kept", only_evidence)


async def test_a_deleted_pod_restarts_the_gang_and_does_not_count(namespace: Namespace) -> None:
    await namespace.apply("j", nodes=2)
    await namespace.reaches("j", "Running")
    await namespace.delete_pod("j-1-0", grace_seconds=0)
    status = await namespace.reaches("j", "Running", attempt=2)
    assert (status["restarts"]["counted"], status["restarts"]["infrastructure"]) == (0, 1)
    assert status["failure"]["reason"] == "PodDeleted"


async def test_a_policy_that_rewrites_managed_by_changes_nothing(namespace: Namespace) -> None:
    await namespace.apply("j", nodes=2)
    await namespace.reaches("j", "Running")
    relabelled = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "policy"}}}
    for rank in range(2):
        await namespace.client.merge_patch(PODS, namespace.name, f"j-1-{rank}", relabelled)
        await namespace.ends(f"j-1-{rank}", 0)
    await namespace.reaches("j", "Succeeded", attempt=1)


async def test_suspend_stops_all_pods_and_resume_starts_a_new_attempt(namespace: Namespace) -> None:
    await namespace.apply("j", nodes=2)
    await namespace.reaches("j", "Running")
    await namespace.edit("j", suspend=True)
    await namespace.reaches("j", "Suspended", attempt=2)

    async def none_left() -> bool:
        return not await namespace.pods()

    await eventually("all pods to stop", none_left)
    await namespace.edit("j", suspend=False)
    status = await namespace.reaches("j", "Running", attempt=2)
    assert status["restarts"]["counted"] == status["restarts"]["infrastructure"] == 0
    assert set(await namespace.pods()) == {"j-2-0", "j-2-1"}


async def test_all_ranks_done_is_success_with_the_last_progress(
    namespace: Namespace, cluster: testbed.ControlPlane
) -> None:
    await namespace.apply("j", nodes=2)
    await namespace.reaches("j", "Running")

    def prints(step: int) -> None:
        line = json.dumps({"step": step, "totalSteps": 100, "epoch": 0, "loss": 0.5, "etaSeconds": 60})
        cluster.append_kwok_log(namespace.name, "j-1-0", f"epoch 0\nddpjob-progress {line}\nsome text\n")

    async def shows(step: int) -> bool:
        return bool((await namespace.status("j")).get("progress", {}).get("step") == step)

    prints(10)
    await eventually("the first progress to show", lambda: shows(10))
    prints(100)
    for rank in range(2):
        await namespace.ends(f"j-1-{rank}", 0)
    status = await namespace.reaches("j", "Succeeded")
    assert status["progress"] == {"step": 100, "totalSteps": 100, "epoch": 0, "loss": 0.5, "eta": "1m0s"}


async def test_a_deleted_service_is_made_again(namespace: Namespace) -> None:
    await namespace.apply("j")
    await namespace.reaches("j", "Running")
    old = uids(await namespace.services())["j-master"]
    await namespace.client.delete(SERVICES, namespace.name, "j-master", uid=old)

    async def made_again() -> bool:
        return uids(await namespace.services()).get("j-master", old) != old

    await eventually("another Service", made_again)
    assert set(await namespace.pods()) == {"j-1-0"}


async def test_a_deleted_job_takes_its_children_along(namespace: Namespace) -> None:
    await namespace.apply("j", nodes=2)
    await namespace.reaches("j", "Running")
    await namespace.delete_job("j")

    async def nothing_left() -> bool:
        return not await namespace.pods() and "j-master" not in await namespace.services()

    await eventually("pods and Service to go", nothing_left)


async def test_what_the_server_refuses_is_said_in_its_words_and_tried_again(
    client: Client, namespace: Namespace
) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}, "apiVersion": "v1", "kind": "ResourceQuota"}
    created = await client.create(QUOTAS, namespace.name, quota)
    await namespace.apply("j", nodes=2)

    async def refused() -> bool:
        status = await namespace.status("j")
        told = "1 of 2 pods exceed quota q: 1 of 1 pods used" in status.get("message", "")
        return status.get("reason") == "QuotaExceeded" and told

    await eventually("the quota's words", refused)
    await client.delete(QUOTAS, namespace.name, "q", uid=created["metadata"]["uid"])
    await namespace.reaches("j", "Running")


async def test_a_job_that_is_applied_again_starts_as_soon_as_its_namesake_s_pods_are_gone(namespace: Namespace) -> None:
    slow = {"metadata": {"annotations": {"testbed/stop-after": "3s"}}}
    await namespace.apply("j", template=slow)
    await namespace.reaches("j", "Running")
    await namespace.delete_job("j")
    await namespace.apply("j")

    async def in_the_way() -> bool:
        return "of DDPJob j (uid" in (await namespace.status("j")).get("message", "")

    await eventually("the pod in the way to be named", in_the_way)
    await namespace.reaches("j", "Running")


async def test_a_pod_on_a_lost_node_is_not_waited_for(namespace: Namespace, cluster: testbed.ControlPlane) -> None:
    (node,) = cluster.add_kwok_nodes(1)
    await namespace.apply(
        "j",
        nodes=2,
        template={
            "metadata": {"annotations": {"testbed/stop-after": "600s"}},  # The node never says that it has stopped.
            "spec": {"nodeSelector": {"kubernetes.io/hostname": node}, "terminationGracePeriodSeconds": 1},
        },
    )
    await namespace.reaches("j", "Running")
    cluster.kubectl("taint", "node", node, "node.kubernetes.io/out-of-service=nodeshutdown:NoSchedule")
    await namespace.ends("j-1-0", 1)

    async def next_gang() -> bool:
        return {"j-2-0", "j-2-1"} <= set(await namespace.pods())

    await eventually("the next gang", next_gang)
    assert "j-1-1" not in await namespace.pods(), "its object would stay for ever, and count in quotas"
    cluster.kubectl("delete", "node", node)


async def test_an_operator_that_is_killed_goes_on_where_it_was_and_touches_nothing_else(
    client: Client, namespace: Namespace, operator_process: OperatorProcess
) -> None:
    for name in ("runs", "fails"):
        await namespace.apply(name, nodes=2)
    await namespace.apply("waits", suspend=True)
    await namespace.apply("done")
    await namespace.reaches("done", "Running")
    await namespace.ends("done-1-0", 0)
    for name, phase in (("runs", "Running"), ("fails", "Running"), ("waits", "Suspended"), ("done", "Succeeded")):
        await namespace.reaches(name, phase)

    async def versions() -> dict[str, str]:
        found = {}
        for resource in (DDPJOBS, PODS, SERVICES):
            async for page in client.pages(resource, namespace.name):
                metadata = [item["metadata"] for item in page.items if not item["metadata"]["name"].startswith("fails")]
                found |= {data["uid"]: data["resourceVersion"] for data in metadata}
        return found

    async def settled() -> dict[str, str]:
        before = await versions()
        over = (await namespace.pods())["done-1-0"]["status"]["phase"] == "Succeeded"
        return before if over and before == await versions() else {}

    before = await eventually("everything to settle", settled)
    operator_process.kill()
    await namespace.ends("fails-1-0", 4)
    operator_process.start()
    status = await namespace.reaches("fails", "Running", attempt=2)
    assert status["failure"]["exitCode"] == 4
    # It looks at old jobs before new ones, so it has looked at all of them by now.
    await namespace.apply("new")
    await namespace.reaches("new", "Running")
    after = await versions()
    assert {uid: after.get(uid) for uid in before} == before


async def test_an_api_server_that_goes_away_for_a_while(
    namespace: Namespace, operator_process: OperatorProcess, cluster: testbed.ControlPlane
) -> None:
    await namespace.apply("j", nodes=2)
    await namespace.reaches("j", "Running")
    cluster.components["kube-apiserver"].kill()
    cluster.components["kube-apiserver"].start()

    async def api_serves() -> bool:
        try:
            return bool(await namespace.job("j"))
        except ApiError:
            return False

    await eventually("the API server to be back", api_serves)
    await namespace.ends("j-1-0", 1)
    await namespace.reaches("j", "Running", attempt=2)
    assert operator_process.process is not None
    assert operator_process.process.poll() is None


async def test_an_operator_of_one_namespace_leaves_the_others_alone_and_stops_at_once(
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
        started_at = time.monotonic()
        code = narrow.stop()
        seconds = time.monotonic() - started_at
        operator_process.start()
    assert code == 0
    assert seconds < 4


async def test_its_probes_and_metrics(namespace: Namespace, operator_process: OperatorProcess) -> None:
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
    assert namespace.name not in metrics  # No label names an object.
