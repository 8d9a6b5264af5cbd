"""Whether a program ended before its pod was deleted, and until when a deleted pod may take.

The clocks of nodes, of the API server and of this process differ by seconds. A kubelet also requests the deletion of a stopped
pod again, without a grace, and the object then names that time (seen on Kubernetes 1.36): taken for the time of the first
request, it made a deleted pod one that had stopped by itself, and its end a StoppedWithCheckpoint.
"""

from typing import Any

import pytest

from ddpjob_operator.core.failure.cause import has_ended
from ddpjob_operator.core.model import CLOCK_MARGIN_SECONDS, Pod
from ddpjob_operator.core.times import epoch_seconds
from ddpjob_operator.kube.cache.store import Store
from support.bodies import job_body, pod_body
from support.engine import ignored, new_store

#: The API server's time of a deletion with a grace of 10 s.
REQUESTED = epoch_seconds("2026-11-21T20:58:07Z")


def pod(version: int, deletion: str | None = None, grace: int = 0, *, ended: str | None = None) -> dict[str, Any]:
    """A pod to be deleted at this time of 2026-11-21, whose program exited with 0 at `ended` or still runs."""
    asked: dict[str, Any] = (
        {"deletionTimestamp": f"2026-11-21T{deletion}Z", "deletionGracePeriodSeconds": grace} if deletion else {}
    )
    exited = {"terminated": {"exitCode": 0, "finishedAt": f"2026-11-21T{ended}Z"}}
    return pod_body(version, state=exited if ended else {"running": {}}, **asked)


MARKED = pod(1, "20:58:17", 10)


class Known(Store):
    """What one process knows, by a clock that tests set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, now: float = REQUESTED) -> None:
        super().__init__(ignored, lambda *_: None)
        self.now = now
        monkeypatch.setattr("time.time", lambda: self.now)

    def after(self, *bodies: dict[str, Any]) -> Pod:
        """The record of the pod after these versions."""
        for body in bodies:
            self.pods.put(body)
        (record,) = self.pods.records()
        return record


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Known:
    return Known(monkeypatch)


def stopped(ended: str) -> list[dict[str, Any]]:
    """A pod that runs, whose deletion is requested at 20:58:07, and whose program then exits at this time of its node."""
    return [pod(1), pod(2, "20:58:17", 10), pod(3, "20:58:17", 10, ended=ended), pod(4, "20:58:09", ended=ended)]


@pytest.mark.parametrize(
    ("versions", "ended_before"),
    [
        (stopped("20:58:08"), False),
        (stopped("20:58:06"), False),  # the clock of its node is behind
        (stopped("20:57:30"), False),
        ([pod(1, ended="20:58:08"), pod(2, "20:59:00", ended="20:58:08")], True),
        ([pod(1, ended="20:59:30"), pod(2, "20:58:17", 10, ended="20:59:30")], True),  # the clock of its node is ahead
        # A process that started later believes the clocks if they are far apart, and knows the request only by a grace.
        ([pod(1, "20:58:17", 10, ended="20:57:06")], True),
        ([pod(1, "20:58:17", 10, ended="20:57:07")], False),
        ([pod(1, "20:58:09", ended="20:56:00")], False),
    ],
)
def test_a_program_ended_before_its_deletion_if_its_end_was_seen_before(known, versions, ended_before) -> None:
    record = known.after(*versions)
    assert (record.ended_before_deletion, record.succeeded) == (ended_before, ended_before)


def test_the_time_at_which_a_deletion_was_first_seen_is_kept_after_the_attempt_is_over(known) -> None:
    known.now = 100.0
    known.jobs.put(job_body(1, attempt=1))
    assert known.after(pod(1)).deletion is None
    known.after(pod(2, "20:58:17", 10))
    known.now = 200.0
    known.jobs.put(job_body(2, attempt=2))
    assert known.after(pod(3, "20:58:17", 5)).deletion.seen_while_current == 100.0


@pytest.mark.parametrize("jobs", [[], [job_body(2, attempt=2)]], ids=["the job is not known", "a later attempt"])
def test_a_deletion_that_was_not_seen_during_the_attempt_has_no_such_time(known, jobs) -> None:
    for body in jobs:
        known.jobs.put(body)
    assert known.after(pod(1, "20:58:09", ended="20:58:08")).deletion.seen_while_current is None


@pytest.mark.parametrize("ahead", [-3600.0, -40.0, 0.0, 40.0])
def test_a_deleted_pod_has_its_whole_grace_by_this_process_s_clock(monkeypatch, ahead: float) -> None:
    """With a clock 40 s ahead of the API server's an attempt ended while a drained rank still saved."""
    known = Known(monkeypatch, REQUESTED + ahead)
    known.after(MARKED)
    known.now += 5
    record = known.after(pod(2, "20:58:17", 10))
    assert record.deletion.deadline == REQUESTED + ahead + 10
    assert not has_ended(record, REQUESTED + ahead + 10)
    assert has_ended(record, REQUESTED + ahead + 11)


def test_a_shorter_grace_counts_from_when_it_was_seen(known) -> None:
    known.after(MARKED)
    known.now += 5
    assert known.after(pod(2, "20:58:13", 1)).deletion.deadline == REQUESTED + 6


def test_a_process_that_starts_late_does_not_wait_for_the_whole_grace_again(monkeypatch) -> None:
    record = Known(monkeypatch, REQUESTED + 3600).after(pod(1, "20:58:17", 600))
    assert record.deletion.deadline == REQUESTED + 10 + CLOCK_MARGIN_SECONDS


KEY = ("ns", "j")
FREED = job_body(3, finalizers=["orphan"])
FINISHED = {
    "conditions": [{"type": "Failed", "status": "True", "reason": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
}


@pytest.fixture
def with_a_job() -> Store:
    """A store that knows a job."""
    store = new_store()
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
    with_a_job: Store, changes, is_removed, orphaned
) -> None:
    with_a_job.pods.put(pod_body(2))
    for body in changes:
        with_a_job.jobs.put(body)
    if is_removed:
        with_a_job.jobs.remove("ns", "j", uid="job-1")
    assert set(with_a_job.orphaned(KEY)) == orphaned
    with_a_job.forget_orphaned(KEY, "job-1")
    assert not with_a_job.orphaned(KEY)


def test_a_deleted_job_without_pods_leaves_no_orphans(with_a_job: Store) -> None:
    with_a_job.jobs.remove("ns", "j", uid="job-1")
    assert not with_a_job.orphaned(KEY)


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
    with_a_job: Store, status, num_kept, is_gone_first
) -> None:
    with_a_job.pods.put(pod_body(2))
    if is_gone_first:
        with_a_job.pods.remove("ns", "j-1-0", uid="pod-1")
    with_a_job.jobs.put({**job_body(3), "status": status})
    with_a_job.pods.remove("ns", "j-1-0", uid="pod-1")
    assert len(list(with_a_job.vanished_pods_of(with_a_job.jobs.get(*KEY).job))) == num_kept


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
    with_a_job: Store, metadata, is_removed, held, is_deleted_first
) -> None:
    body = pod_body(2, **metadata)
    body["metadata"]["labels"] |= GROUP
    if is_removed and is_deleted_first:
        with_a_job.jobs.remove("ns", "j", uid="job-1")
    with_a_job.pods.put(body)
    if is_removed and not is_deleted_first:
        with_a_job.jobs.remove("ns", "j", uid="job-1")
    assert set(with_a_job.held_by_group(KEY)) == held
    with_a_job.forget_held_by_group(KEY, "job-1")
    assert not with_a_job.held_by_group(KEY)


def test_a_leader_begins_with_all_jobs_and_with_what_deleted_ones_have_left() -> None:
    store = new_store()
    store.jobs.put(job_body(1))
    store.jobs.put(job_body(2, uid="gone", name="gone"))
    store.pods.put(pod_body(3, job_uid="gone", name="gone-1-0", uid="p"))
    store.jobs.remove("ns", "gone", uid="gone")
    assert store.keys() == {("ns", "j"), ("ns", "gone")}
    store.pods.remove("ns", "gone-1-0", uid="p")
    assert store.keys() == {("ns", "j")}
