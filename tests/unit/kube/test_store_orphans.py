"""What the store remembers of a job that is gone while its pods are not."""

from typing import Any

import pytest

from ddpjob_operator.api import names
from ddpjob_operator.kube.cache.store import Store

KEY = ("ns", "j")
FINISHED = {
    "conditions": [{"type": "Failed", "status": "True", "reason": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
}


def job(version: int, *, uid: str = "job-1", finalizers: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "ns",
            "name": "j",
            "uid": uid,
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": list(finalizers),
        },
        "spec": {"command": ["python", "train.py"]},
    }


def pod(version: int, job_uid: str = "job-1") -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "ns",
            "name": "j-1-0",
            "uid": "pod-1",
            "resourceVersion": str(version),
            "labels": {names.LABEL_JOB_UID: job_uid, names.LABEL_ATTEMPT: "1", names.LABEL_RANK: "0"},
            "ownerReferences": [{"kind": names.KIND, "uid": job_uid, "controller": True}],
        },
        "spec": {"containers": [{"name": names.MAIN_CONTAINER}]},
    }


def store() -> Store:
    return Store(lambda _, **__: None, lambda *_: None)


def test_a_job_that_exists_has_no_orphans() -> None:
    known = store()
    known.jobs.put(job(1))
    known.pods.put(pod(2))
    known.jobs.put(job(3))
    assert not known.orphaned(KEY)


def test_pods_of_a_deleted_job_are_orphans_until_they_are_dealt_with() -> None:
    known = store()
    known.jobs.put(job(1))
    known.pods.put(pod(2))
    known.jobs.remove("ns", "j", uid="job-1")
    assert known.orphaned(KEY) == {"job-1"}
    known.forget_orphaned(KEY, "job-1")
    assert not known.orphaned(KEY)


def test_pods_of_a_job_that_another_of_its_name_replaced_are_orphans() -> None:
    known = store()
    known.jobs.put(job(1))
    known.pods.put(pod(2))
    known.jobs.put(job(5, uid="job-2"))
    assert known.orphaned(KEY) == {"job-1"}


def test_a_job_without_pods_leaves_none() -> None:
    known = store()
    known.jobs.put(job(1))
    known.jobs.remove("ns", "j", uid="job-1")
    assert not known.orphaned(KEY)


def test_pods_that_were_meant_to_outlive_their_job_are_left_alone() -> None:
    known = store()
    known.jobs.put(job(1))
    known.pods.put(pod(2))
    known.jobs.put(job(3, finalizers=("orphan",)))
    known.jobs.put(job(4))  # The garbage collector has set the pods free, and takes its mark away.
    known.jobs.remove("ns", "j", uid="job-1")
    assert not known.orphaned(KEY)


@pytest.mark.parametrize(
    ("status", "num_kept"),
    [
        ({"attempt": 1}, 1),
        ({"attempt": 2}, 1),  # the failure of attempt 1 may still be explained better
        ({"attempt": 2, "runningSince": "2026-01-01T00:00:00Z"}, 0),
        ({"attempt": 3}, 0),
        ({"attempt": 1, **FINISHED}, 0),
    ],
    ids=["current", "next attempt starts", "next attempt runs", "a later attempt", "finished"],
)
@pytest.mark.parametrize("is_gone_first", [True, False])
def test_the_record_of_a_pod_that_is_gone_is_kept_while_a_decision_may_need_it(status, num_kept, is_gone_first) -> None:
    known = store()
    known.jobs.put(job(1))
    known.pods.put(pod(2))
    if is_gone_first:
        known.pods.remove("ns", "j-1-0", uid="pod-1")
    known.jobs.put({**job(3), "status": status})
    known.pods.remove("ns", "j-1-0", uid="pod-1")

    of = known.jobs.get(*KEY)
    assert of is not None
    assert len(list(known.vanished_pods_of(of.job))) == num_kept
