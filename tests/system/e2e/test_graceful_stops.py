"""Suspended, preempted or drained: the job saves within its grace period and resumes at the step where it stopped."""

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import testbed
from testbed import tools

#: More than a minute of work on two cores; no test waits for its end.
LONG = {"recipe": "digits", "epochs": 400}
#: More than half of a node of this machine, so that two such pods never share one.
WIDE = {"requests": {"cpu": "1100m", "memory": "256Mi"}}
URGENT = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "e2e-urgent"},
    "value": 1000,
}


@contextlib.contextmanager
def followed(job, file: Path) -> Iterator[None]:
    """Copy the log of the first attempt's rank 0, whose pod may be gone before anybody asks, into a file."""
    command = [str(tools.path("kubectl")), f"--kubeconfig={job.kubectl.kubeconfig}", "-n", job.namespace]
    with file.open("wb") as output:
        kubectl = subprocess.Popen([*command, "logs", "--follow", f"{job.name}-1-0"], stdout=output)
    try:
        yield
    finally:
        kubectl.kill()
        kubectl.wait(timeout=10)


def stopped_at(log: Path) -> int:
    said = re.search(r"stopped on request after step (\d+); the checkpoint of it is complete", log.read_text())
    assert said, f"rank 0 did not save when it was asked to stop; its log ends with: {log.read_text()[-500:]}"
    return int(said[1])


def resumed_at(job) -> int:
    found = testbed.wait_for(
        "attempt 2 to find its checkpoint",
        lambda: re.search(r"resumed from step (\d+)|starting at step 0", job.log(2)),
        seconds=120,
        every_seconds=0.5,
    )
    return int(found[1] or 0)


@pytest.fixture
def training(job):
    """A job of two nodes in the middle of its work, with checkpoints that survive it."""

    def apply(name: str, **spec) -> None:
        # No periodic save before step 1000000: the checkpoint to resume from was saved on request, or at the end of an epoch.
        checkpoint = {**job.claim_volume(), "everySteps": 1_000_000}
        job.apply(name, nodes=2, trainer=LONG, checkpoint=checkpoint, **spec)
        job.wait_step(40)

    return apply


def test_a_suspended_job_goes_on_where_it_stopped(job, training, tmp_path) -> None:
    training("suspended")
    patch = ["patch", "ddpjob", "suspended", "-n", job.namespace, "--type=merge", "-p"]

    with followed(job, tmp_path / "log"):
        job.kubectl(*patch, '{"spec":{"suspend":true}}')
        job.wait_phase("Suspended", seconds=30)
        testbed.wait_for("all pods to stop", lambda: not job.pods(1), seconds=60, every_seconds=0.5)
    job.kubectl(*patch, '{"spec":{"suspend":false}}')

    assert resumed_at(job) == stopped_at(tmp_path / "log")
    assert job.status["restarts"]["counted"] == 0
    assert job.status["restarts"]["infrastructure"] == 0


@pytest.mark.usefixtures("machine")  # another cluster's nodes are of another size
def test_a_preempted_job_goes_on_where_it_stopped(job, training, tmp_path) -> None:
    job.kubectl.apply(URGENT)
    try:
        training("preempted", resources=WIDE)
        with followed(job, tmp_path / "log"):
            urgent = type(job)(job.kubectl, job.namespace)
            urgent.apply(
                "urgent",
                command=["python", "-c", "import time; time.sleep(3600)"],
                resources=WIDE,
                template={"spec": {"priorityClassName": "e2e-urgent"}},
            )
            urgent.wait_phase("Running", seconds=90)
        job.wait_attempt(2, seconds=60)
        waiting = testbed.wait_for(
            "the job to wait for a node",
            lambda: status if (status := job.status)["reason"] == "Unschedulable" else None,
            seconds=60,
            every_seconds=0.5,
        )
        job.kubectl("delete", "ddpjob", "urgent", "-n", job.namespace)

        assert resumed_at(job) == stopped_at(tmp_path / "log")
    finally:
        job.kubectl("delete", "priorityclass", "e2e-urgent")
    assert "cpu" in waiting["message"]
    assert waiting["failure"]["reason"] == "Preempted"
    assert waiting["failure"]["checkpointStep"] == stopped_at(tmp_path / "log")
    assert waiting["restarts"]["counted"] == 0


def test_a_drained_job_goes_on_elsewhere_where_it_stopped(job, machine, training, tmp_path) -> None:
    training("drained")
    node = job.pods(1)[1]["spec"]["nodeName"]

    drain = ["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s"]
    try:
        with followed(job, tmp_path / "log"):
            machine.kubectl(*drain, "--pod-selector=ddpjob.dev/job=drained")
        assert resumed_at(job) == stopped_at(tmp_path / "log")
        nodes = {pod["spec"]["nodeName"] for pod in job.pods(2)}
    finally:
        machine.kubectl("uncordon", node)

    status = job.status
    assert node not in nodes
    assert (status["failure"]["reason"], status["failure"]["node"]) == ("NodeDrained", node)
    assert status["restarts"]["counted"] == 0
