"""Bodies of jobs and pods as the API server sends them."""

from typing import Any

from ddpjob_operator.api import names

CREATED = "2026-01-01T00:00:00Z"


def job_body(version: int, *, uid: str = "job-1", attempt: int | None = None, **metadata: Any) -> dict[str, Any]:
    """The job `ns/j`; `metadata` are further fields of that name."""
    identity = {"namespace": "ns", "name": "j", "uid": uid, "resourceVersion": str(version)}
    return {
        "metadata": {**identity, "creationTimestamp": CREATED, **metadata},
        "spec": {"command": ["python", "train.py"]},
        "status": {"attempt": attempt} if attempt else {},
    }


def pod_body(
    version: int, *, job_uid: str = "job-1", state: dict[str, Any] | None = None, **metadata: Any
) -> dict[str, Any]:
    """Rank 0 of attempt 1, whose main container is in this state."""
    identity = {"namespace": "ns", "name": "j-1-0", "uid": "pod-1", "resourceVersion": str(version)}
    labels = {names.LABEL_JOB_UID: job_uid, names.LABEL_ATTEMPT: "1", names.LABEL_RANK: "0"}
    owner = {"kind": names.KIND, "uid": job_uid, "controller": True}
    status = (
        {"phase": "Running", "containerStatuses": [{"name": names.MAIN_CONTAINER, "state": state}]} if state else {}
    )
    return {
        "metadata": {**identity, "labels": labels, "ownerReferences": [owner], **metadata},
        "spec": {"containers": [{"name": names.MAIN_CONTAINER}]},
        "status": status,
    }
