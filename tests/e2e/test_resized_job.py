"""`kubectl scale` on a real training: it grows and shrinks, and each attempt goes on at the step that the one before saved."""

import json
import subprocess

from support.job_on_cluster import saved_step
from testbed import tools

#: More than a minute of work on two cores, after the job has shrunk to one rank.
LONG = {"recipe": "digits", "epochs": 400}


def scaled(job, attempt: int, nodes: int) -> int:
    """Scale the running job; gives the step that this attempt saved."""
    follow = ("logs", "--follow", f"{job.name}-{attempt}-0", "-n", job.namespace)  # its pod is deleted
    command = [str(tools.path("kubectl")), f"--kubeconfig={job.kubectl.kubeconfig}", *follow]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as followed:
        job.kubectl("scale", "ddpjob", job.name, f"--replicas={nodes}", "-n", job.namespace)
        log, _ = followed.communicate(timeout=120)
    return saved_step(log)


def test_a_training_goes_on_with_more_and_with_fewer_nodes(job) -> None:
    # No periodic save: the checkpoint to resume from was saved on request, or at the end of an epoch.
    job.apply("resized", nodes=1, trainer=LONG, checkpoint={**job.claim_volume(), "everySteps": 1_000_000})
    job.wait_step(40)
    reached = 0
    for attempt, nodes in ((2, 3), (3, 2)):
        saved = scaled(job, attempt - 1, nodes)
        assert saved > reached
        assert job.wait_resumed(attempt) == saved
        reached = saved
        job.wait_step(reached + 20, attempt=attempt)
        assert f"world size {nodes}" in job.log(attempt)
        assert len(job.pods(attempt)) == nodes

    status = job.status
    assert status["ready"] == "2/2"
    assert (status["restarts"]["counted"], status["restarts"]["infrastructure"]) == (0, 0)
    assert "failure" not in status
    events = job.kubectl.json("get", "events", "-n", job.namespace, "--field-selector=reason=Resized")["items"]
    assert len(events) == 2, json.dumps([event["message"] for event in events])
