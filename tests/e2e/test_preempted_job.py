"""A preempted job saves within its grace period and resumes at the step where it stopped.

Suspended jobs and drained nodes are cells of the chaos matrix.
"""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import testbed
from support.job_on_cluster import saved_step
from testbed import tools

#: More than a minute of work on two cores; the test does not wait for its end.
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
        testbed.wait_for("the log to be followed", lambda: file.stat().st_size > 0, seconds=300)
        yield
        kubectl.wait(timeout=300)  # it has shown all of the log once the container has ended
    finally:
        kubectl.kill()
        kubectl.wait(timeout=240)


@pytest.mark.usefixtures("machine")  # another cluster's nodes are of another size
def test_a_preempted_job_resumes_where_it_stopped(job, tmp_path) -> None:
    # No periodic save: the checkpoint to resume from was saved on request, or at the end of an epoch.
    checkpoint = {**job.claim_volume(), "everySteps": 1_000_000}
    job.kubectl.apply(URGENT)
    try:
        job.apply("preempted", nodes=2, trainer=LONG, checkpoint=checkpoint, resources=WIDE)
        job.wait_step(40)
        with followed(job, tmp_path / "log"):
            urgent = type(job)(job.kubectl, job.namespace)
            urgent.apply(
                "urgent",
                command=["python", "-c", "import time; time.sleep(3600)"],
                resources=WIDE,
                template={"spec": {"priorityClassName": "e2e-urgent"}},
            )
            urgent.wait_phase("Running", seconds=300)
        job.wait_attempt(2, seconds=300)
        waiting = testbed.wait_for(
            "the job to wait for a node",
            lambda: status if (status := job.status)["reason"] == "Unschedulable" else None,
            seconds=300,
            every_seconds=0.5,
        )
        job.kubectl("delete", "ddpjob", "urgent", "-n", job.namespace)

        saved = saved_step((tmp_path / "log").read_text())
        assert job.wait_resumed(2) == saved
    finally:
        job.kubectl("delete", "priorityclass", "e2e-urgent")
    assert "cpu" in waiting["message"]
    assert waiting["failure"]["reason"] == "Preempted"
    assert waiting["failure"]["checkpointStep"] == saved
    assert waiting["restarts"]["counted"] == 0
