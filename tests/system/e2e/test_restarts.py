"""Faults injected from the host: the whole gang restarts and resumes from its checkpoint."""

import os
import re
import signal
import time
from collections.abc import Iterator

import testbed

#: Long enough that a fault meets a job in the middle of its work.
LONG = {"recipe": "digits", "epochs": 15}
#: A lost node is given up 5 s after it was found to be silent.
IMPATIENT = {
    "spec": {
        "terminationGracePeriodSeconds": 5,
        "tolerations": [
            {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
            for taint in ("not-ready", "unreachable")
        ],
    }
}


def kill(machine: testbed.Cluster, job, rank: int, attempt: int = 1) -> None:
    os.kill(machine.container_pid(job.namespace, f"{job.name}-{attempt}-{rank}", "trainer"), signal.SIGKILL)


def resumed_step(log: str) -> int:
    return int(re.findall(r"resumed from step (\d+)", log)[0])


def test_a_killed_rank_restarts_the_gang_once_from_its_checkpoint(job, machine) -> None:
    job.apply("killed", nodes=2, trainer=LONG, checkpoint=job.claim_volume())
    job.wait_step(60)

    kill(machine, job, rank=1)
    status = job.wait_end(seconds=300)

    assert (status["phase"], status["attempt"], status["restarts"]["counted"]) == ("Succeeded", 2, 1)
    assert (status["failure"]["rank"], status["failure"]["signal"]) == (1, 9)
    assert resumed_step(job.log(2)) >= 40
    kept = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in job.pods(1)}
    assert kept["killed-1-1"] == "Failed"  # the evidence; that of rank 0, too, where it left before it was deleted
    assert set(kept.values()) == {"Failed"}


def versions_for(seconds: float, job) -> Iterator[str]:
    """The versions of the job's object that show up in this time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield job.kubectl.json("get", "ddpjob", job.name, "-n", job.namespace)["metadata"]["resourceVersion"]


def test_a_lost_node_moves_the_gang_to_what_is_left(job, machine) -> None:
    job.apply(
        "moved", nodes=2, trainer={"recipe": "digits", "epochs": 100}, checkpoint=job.claim_volume(), template=IMPATIENT
    )
    job.wait_step(40)
    lost = next(node for node in machine.nodes if node.name == job.pods(1)[1]["spec"]["nodeName"])

    lost.kill_kubelet()
    try:
        job.wait_attempt(2, seconds=120)
        testbed.wait_for("two pods of attempt 2", lambda: len(job.pods(2)) == 2, seconds=120, every_seconds=0.5)
        job.wait_phase("Running", seconds=120)
        nodes = {pod["spec"]["nodeName"] for pod in job.pods(2)}
        num_versions = len(set(versions_for(5, job)))
        testbed.wait_for("attempt 2 to resume", lambda: "resumed from" in job.log(2), seconds=120, every_seconds=0.5)
        status = job.status
    finally:
        lost.start_kubelet()
        machine.kubectl("wait", "--for=condition=Ready", f"node/{lost.name}", "--timeout=60s")

    assert num_versions <= 2, "the status is written only when there is news"
    assert nodes == {node.name for node in machine.nodes if node is not lost}
    assert (status["restarts"]["counted"], status["restarts"]["infrastructure"]) == (0, 1)
    assert status["failure"]["reason"] == "NodeLost"
    assert resumed_step(job.log(2)) >= 20


def test_deleting_a_job_in_the_middle_leaves_nothing(job) -> None:
    job.apply("deleted", nodes=2, trainer=LONG)
    job.wait_step(20)

    job.kubectl("delete", "ddpjob", "deleted", "-n", job.namespace, "--wait=false")

    testbed.wait_for(
        "pods and Service to be gone",
        lambda: not job.kubectl("get", "pods,services", "-n", job.namespace, "-l", "ddpjob.dev/job", "-o", "name"),
        seconds=60,
        every_seconds=0.5,
    )
    job.name = ""


def test_a_killed_operator_disturbs_nothing(job, machine) -> None:
    job.apply("undisturbed", nodes=2, trainer=LONG)
    job.wait_step(20)
    before = [pod["metadata"]["uid"] for pod in job.pods(1)]
    operator = machine.kubectl(
        "get", "pods", "-n", "ddpjob-system", "-l", "app.kubernetes.io/name=ddpjob-operator", "-o", "name"
    ).strip()

    name = operator.removeprefix("pod/")
    os.kill(machine.container_pid("ddpjob-system", name, "operator"), signal.SIGKILL)
    status = job.wait_end(seconds=300)

    restarts = machine.kubectl.json("get", "pod", name, "-n", "ddpjob-system")["status"]["containerStatuses"][0]
    assert restarts["restartCount"] >= 1
    assert [pod["metadata"]["uid"] for pod in job.pods(1)] == before
    assert (status["phase"], status["attempt"], status["restarts"]["infrastructure"]) == ("Succeeded", 1, 0)
