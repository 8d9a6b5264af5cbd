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
from ddpjob_operator.kube.cache import store
from ddpjob_operator.kube.cache.store import Store
from support.bodies import job_body, pod_body

#: The API server's time of a deletion with a grace of 10 s.
REQUESTED = epoch_seconds("2026-11-21T20:58:07Z")


def pod(version: int, deletion: str | None = None, grace: int = 0, *, ended: str | None = None) -> dict[str, Any]:
    """A pod to be deleted at this time of 2026-11-21, whose program exited with 0 at `ended` or still runs."""
    asked = {"deletionTimestamp": f"2026-11-21T{deletion}Z", "deletionGracePeriodSeconds": grace} if deletion else {}
    exited = {"terminated": {"exitCode": 0, "finishedAt": f"2026-11-21T{ended}Z"}}
    return pod_body(version, state=exited if ended else {"running": {}}, **asked)


MARKED = pod(1, "20:58:17", 10)


class Known(Store):
    """What one process knows, by a clock that tests set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, now: float = REQUESTED) -> None:
        super().__init__(lambda _, **__: None, lambda *_: None)
        self.now = now
        monkeypatch.setattr(store.time, "time", lambda: self.now)

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
