"""Pods and logs of failed attempts are kept until the job is deleted; edits take effect on a running job at once."""

import json
import os
import signal

import testbed

ALWAYS_FAILS = """
import os

raise RuntimeError(f"attempt {os.environ['DDPJOB_ATTEMPT']} fails")
"""
BUSY = ["python", "-c", "import time; time.sleep(3600)"]


def test_logs_of_every_kept_attempt_can_be_read_until_the_job_is_deleted(job) -> None:
    job.apply_script("failing", ALWAYS_FAILS, command=["python", "/script/train.py"], restart={"maxRestarts": 3})

    status = job.wait_end(seconds=240)
    assert (status["attempt"], status["restarts"]["counted"]) == (4, 3)
    for attempt in (2, 3, 4):  # the two kept, and the last
        assert f"RuntimeError: attempt {attempt} fails" in job.log(attempt)
    testbed.wait_for("the pods of attempt 1 to go", lambda: not job.pods(1), seconds=300)

    job.kubectl("delete", "ddpjob", "failing", "-n", job.namespace, "--wait=false")
    job.wait_gone()


def test_edits_take_effect_on_a_running_job_at_once(job, machine) -> None:
    job.apply(
        "edited", command=BUSY, restart={"maxRestarts": 0}, template={"spec": {"terminationGracePeriodSeconds": 5}}
    )
    job.wait_phase("Running", seconds=300)

    edit(job, restart={"maxRestarts": 1})
    os.kill(machine.container_pid(job.namespace, "edited-1-0", "trainer"), signal.SIGKILL)
    job.wait_attempt(2, seconds=300)
    job.wait_phase("Running", seconds=300)

    edit(job, deadlines={"activeSeconds": 1})
    assert job.wait_end(seconds=300)["reason"] == "ActiveDeadline"
    assert [pod["metadata"]["name"] for pod in job.pods(1)] == ["edited-1-0"]  # the evidence

    edit(job, ttlSecondsAfterFinished=1)
    job.wait_gone()
    assert "edited" not in job.kubectl("get", "ddpjob", "-n", job.namespace, "-o", "name")


def edit(job, **spec) -> None:
    job.kubectl("patch", "ddpjob", job.name, "-n", job.namespace, "--type=merge", "-p", json.dumps({"spec": spec}))
