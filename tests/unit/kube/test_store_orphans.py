"""What the store knows of pods whose job is gone."""

import pytest

from ddpjob_operator.kube.cache.store import Store
from support.bodies import job_body, pod_body

KEY = ("ns", "j")
FREED = job_body(3, finalizers=["orphan"])
FINISHED = {
    "conditions": [{"type": "Failed", "status": "True", "reason": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
}


@pytest.fixture
def known() -> Store:
    """A store that knows a job."""
    store = Store(lambda _, **__: None, lambda *_: None)
    store.jobs.put(job_body(1))
    return store


@pytest.mark.parametrize(
    ("changes", "is_removed", "orphaned"),
    [
        ([job_body(3)], False, set()),
        ([], True, {"job-1"}),
        ([job_body(5, uid="job-2")], False, {"job-1"}),  # another job of its name has replaced it
        # The user wanted the pods to outlive the job: the garbage collector frees them and removes its finalizer.
        ([FREED, job_body(4)], True, set()),
    ],
)
def test_pods_are_orphans_if_their_job_is_gone_and_should_have_taken_them_along(
    known: Store, changes, is_removed, orphaned
) -> None:
    known.pods.put(pod_body(2))
    for body in changes:
        known.jobs.put(body)
    if is_removed:
        known.jobs.remove("ns", "j", uid="job-1")
    assert set(known.orphaned(KEY)) == orphaned
    known.forget_orphaned(KEY, "job-1")
    assert not known.orphaned(KEY)


def test_a_deleted_job_without_pods_leaves_no_orphans(known: Store) -> None:
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
def test_the_record_of_a_pod_that_is_gone_is_kept_while_a_decision_may_need_it(
    known: Store, status, num_kept, is_gone_first
) -> None:
    known.pods.put(pod_body(2))
    if is_gone_first:
        known.pods.remove("ns", "j-1-0", uid="pod-1")
    known.jobs.put({**job_body(3), "status": status})
    known.pods.remove("ns", "j-1-0", uid="pod-1")
    assert len(list(known.vanished_pods_of(known.jobs.get(*KEY).job))) == num_kept


GROUP = {"kueue.x-k8s.io/pod-group-name": "j-1-f3c2"}
DELETION = {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}


@pytest.mark.parametrize(
    ("metadata", "is_removed", "held"),
    [
        ({"finalizers": ["kueue.x-k8s.io/managed"], **DELETION}, True, {"job-1"}),
        ({"finalizers": ["kueue.x-k8s.io/managed"], **DELETION}, False, set()),  # the job's own plan closes the group
        ({"finalizers": ["kueue.x-k8s.io/managed"]}, True, set()),  # the user wanted the pods to outlive the job
        (DELETION, True, set()),
    ],
)
@pytest.mark.parametrize("is_deleted_first", [True, False])
def test_the_group_of_a_deleted_job_is_noted_while_it_keeps_pods(
    known: Store, metadata, is_removed, held, is_deleted_first
) -> None:
    body = pod_body(2, **metadata)
    body["metadata"]["labels"] |= GROUP
    if is_removed and is_deleted_first:
        known.jobs.remove("ns", "j", uid="job-1")
    known.pods.put(body)
    if is_removed and not is_deleted_first:
        known.jobs.remove("ns", "j", uid="job-1")
    assert set(known.held_by_group(KEY)) == held
    known.forget_held_by_group(KEY, "job-1")
    assert not known.held_by_group(KEY)


def test_a_leader_begins_with_all_jobs_and_with_what_deleted_ones_have_left() -> None:
    store = Store(lambda _, **__: None, lambda *_: None)
    store.jobs.put(job_body(1))
    store.jobs.put(job_body(2, uid="gone", name="gone"))
    store.pods.put(pod_body(3, job_uid="gone", name="gone-1-0", uid="p"))
    store.jobs.remove("ns", "gone", uid="gone")
    assert store.keys() == {("ns", "j"), ("ns", "gone")}
    store.pods.remove("ns", "gone-1-0", uid="p")
    assert store.keys() == {("ns", "j")}
