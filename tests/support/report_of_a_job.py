"""A report with everything on it, for tests of the page."""

import math
from typing import Any

from ddpjob.client.jobs import read_event, read_job, read_pod
from ddpjob_cli.curves import Curves, Point
from ddpjob_cli.explanation import explained
from ddpjob_cli.report_page import page

TIME = "2026-11-22T10:00:00Z"
FAILURE = {
    "attempt": 1,
    "rank": 1,
    "pod": "net-1-1",
    "node": "gpu-3",
    "exitCode": 1,
    "time": TIME,
    "reason": "ProgramError",
    "message": "ValueError: <script>alert(1)</script> \x1b[31m is out of range",
}
BODY: dict[str, Any] = {
    "apiVersion": "ddpjob.dev/v1beta1",
    "kind": "DDPJob",
    "metadata": {
        "name": "net",
        "namespace": "team-a",
        "uid": "u",
        "resourceVersion": "1",
        "creationTimestamp": TIME,
        "managedFields": [{"manager": "kubectl"}],
    },
    "spec": {
        "nodes": 2,
        "command": ["python", "train.py", "--api-key", "hunter2", "--token=hunter2", "--lr", "0.1"],
        "env": [{"name": "HF_TOKEN", "value": "hunter2"}],
        "template": {"metadata": {"annotations": {"registry-password": "hunter2"}}},
    },
    "status": {
        "phase": "Failed",
        "reason": "ProgramError",
        "message": "no restarts are left",
        "attempt": 2,
        "startTime": TIME,
        "completionTime": "2026-11-22T11:00:00Z",
        "failure": FAILURE,
        "attempts": [FAILURE, {**FAILURE, "attempt": 2}],
        "conditions": [{"type": "Failed", "status": "True", "reason": "x", "message": "", "lastTransitionTime": TIME}],
        "progress": {"step": 345, "totalSteps": 400, "loss": 0.0948},
        "time": {
            "queuedSeconds": 60,
            "startingSeconds": 40,
            "trainingSeconds": 3000,
            "lostSeconds": 500,
            "goodputPercent": 83.3,
            "until": TIME,
        },
    },
}


def report() -> str:
    """The page of a failed job with two attempts."""
    job = read_job(BODY)
    labels = {"ddpjob.dev/attempt": "2", "ddpjob.dev/rank": "1"}
    ended = {"exitCode": 1, "reason": "Error", "message": "ValueError"}
    status = {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": {"terminated": ended}}]}
    pod = read_pod({"metadata": {"name": "net-2-1", "labels": labels}, "spec": {"nodeName": "gpu-3"}, "status": status})
    assert pod is not None
    event = read_event(
        {
            "type": "Warning",
            "reason": "Failed",
            "message": "</pre><b>bold</b>",
            "lastTimestamp": TIME,
            "metadata": {},
            "involvedObject": {"kind": "Pod", "name": "net-2-1"},
        }
    )
    points = [
        Point(attempt=1 + (step > 200), step=step, value=2.3 * math.exp(-step / 100), time=TIME)
        for step in range(0, 345, 5)
    ]
    curves = Curves(points={"loss": points, "accuracy": points[::10]}, restarts=(205,))
    return page(
        job, [pod], [event], curves, explained(job, [pod], [event]), versions={"ddpjob command": "0.1.0"}, created=TIME
    )


if __name__ == "__main__":
    print(report())
