"""Pods and logs of failed attempts are kept until the job is deleted."""

import testbed

ALWAYS_FAILS = """
import os

raise RuntimeError(f"attempt {os.environ['DDPJOB_ATTEMPT']} fails")
"""


def test_logs_of_every_kept_attempt_can_be_read_until_the_job_is_deleted(job) -> None:
    job.apply_script("failing", ALWAYS_FAILS, command=["python", "/script/train.py"], restart={"maxRestarts": 3})

    status = job.wait_end()
    assert (status["attempt"], status["restarts"]["counted"]) == (4, 3)
    for attempt in (2, 3, 4):  # the two kept, and the last
        assert f"RuntimeError: attempt {attempt} fails" in job.log(attempt)
    testbed.wait_for("the pods of attempt 1 to go", lambda: not job.pods(1))

    job.kubectl("delete", "ddpjob", "failing", "-n", job.namespace, "--wait=false")
    job.wait_gone()
