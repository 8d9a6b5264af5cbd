"""A kubelet asks for the deletion of a stopped pod again, without a grace, and the object then names that time.

Seen on Kubernetes 1.36: taken for the time of the first request, it made a rank that was told to stop one that had
stopped by itself, and a deleted pod a StoppedWithCheckpoint.
"""

from typing import Any

import pytest

from ddpjob_operator.api import names
from ddpjob_operator.core.failure.cause import has_ended
from ddpjob_operator.core.model import Pod
from ddpjob_operator.core.times import epoch_seconds
from ddpjob_operator.kube.cache import store
from ddpjob_operator.kube.cache.store import CLOCK_MARGIN_SECONDS, Store

ENDED = "2026-11-21T20:58:08Z"


def pod(version: int, *, deletion: str | None = None, grace: int = 0, ended: str | None = ENDED) -> dict[str, Any]:
    asked = {"deletionTimestamp": deletion, "deletionGracePeriodSeconds": grace} if deletion else {}
    state = {"terminated": {"exitCode": 75, "finishedAt": ended}} if ended else {"running": {}}
    return {
        "metadata": {
            "namespace": "ns",
            "name": "j-1-0",
            "uid": "pod-1",
            "resourceVersion": str(version),
            "labels": {names.LABEL_JOB_UID: "job-1", names.LABEL_ATTEMPT: "1", names.LABEL_RANK: "0"},
            "ownerReferences": [{"kind": names.KIND, "uid": "job-1", "controller": True}],
            **asked,
        },
        "spec": {"containers": [{"name": names.MAIN_CONTAINER}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": names.MAIN_CONTAINER, "state": state}]},
    }


def last_record(*bodies: dict[str, Any]) -> Pod:
    known = Store(lambda _, **__: None, lambda *_: None)
    for body in bodies:
        known.pods.put(body)
    (record,) = known.pods.records()
    return record


def test_the_first_request_counts() -> None:
    record = last_record(
        pod(1, ended=None),
        pod(2, ended=None, deletion="2026-11-21T20:58:17Z", grace=10),
        pod(3, deletion="2026-11-21T20:58:17Z", grace=10),
        pod(4, deletion="2026-11-21T20:58:09Z"),
    )

    assert not record.ended_before_deletion


def test_a_pod_that_is_tidied_away_after_its_end_had_ended_before() -> None:
    assert last_record(pod(1), pod(2, deletion="2026-11-21T20:59:00Z")).ended_before_deletion


def test_who_did_not_see_the_first_request_knows_of_none() -> None:
    assert not last_record(pod(1, deletion="2026-11-21T20:58:09Z")).ended_before_deletion


def job(attempt: int) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "ns",
            "name": "j",
            "uid": "job-1",
            "resourceVersion": str(attempt),
            "creationTimestamp": ENDED,
        },
        "spec": {"nodes": 1, "gpusPerNode": 0, "trainer": {"recipe": "digits"}},
        "status": {"attempt": attempt},
    }


def test_when_somebody_began_to_delete_a_pod_of_the_attempt_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(store.time, "time", lambda: clock[0])
    known = Store(lambda _, **__: None, lambda *_: None)
    known.jobs.put(job(1))
    known.pods.put(pod(1, ended=None))
    assert next(iter(known.pods.records())).deletion is None
    known.pods.put(pod(2, ended=None, deletion="2026-11-21T20:58:17Z", grace=10))
    clock[0] = 200.0
    known.jobs.put(job(2))
    known.pods.put(pod(3, ended=None, deletion="2026-11-21T20:58:17Z", grace=5))
    assert next(iter(known.pods.records())).deletion.seen_while_current == 100.0


@pytest.mark.parametrize("attempt", [None, 2])
def test_of_a_job_that_has_gone_on_or_is_not_known_it_is_not(attempt: int | None) -> None:
    known = Store(lambda _, **__: None, lambda *_: None)
    if attempt is not None:
        known.jobs.put(job(attempt))
    known.pods.put(pod(1, deletion="2026-11-21T20:58:09Z"))
    assert next(iter(known.pods.records())).deletion.seen_while_current is None


API_SERVER = epoch_seconds("2026-11-21T20:58:07Z")
MARKED = pod(1, ended=None, deletion="2026-11-21T20:58:17Z", grace=10)


@pytest.mark.parametrize("ahead", [-3600.0, -40.0, 0.0, 40.0])
def test_a_deleted_pod_has_its_whole_grace_by_this_process_s_clock(
    monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """With a clock 40 s ahead of the API server's an attempt ended while a drained rank still saved."""
    clock = [API_SERVER + ahead]
    monkeypatch.setattr(store.time, "time", lambda: clock[0])
    known = Store(lambda _, **__: None, lambda *_: None)
    known.pods.put(MARKED)
    clock[0] += 5
    known.pods.put({**MARKED, "metadata": {**MARKED["metadata"], "resourceVersion": "2"}})

    (record,) = known.pods.records()
    assert record.deletion.deadline == API_SERVER + ahead + 10
    assert not has_ended(record, API_SERVER + ahead + 10)
    assert has_ended(record, API_SERVER + ahead + 11)


def test_a_shorter_grace_counts_from_when_it_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [API_SERVER]
    monkeypatch.setattr(store.time, "time", lambda: clock[0])
    known = Store(lambda _, **__: None, lambda *_: None)
    known.pods.put(MARKED)
    clock[0] += 5
    known.pods.put(pod(2, ended=None, deletion="2026-11-21T20:58:13Z", grace=1))

    assert next(iter(known.pods.records())).deletion.deadline == API_SERVER + 6


def test_a_process_that_starts_late_does_not_wait_for_the_whole_grace_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.time, "time", lambda: API_SERVER + 3600)
    known = Store(lambda _, **__: None, lambda *_: None)
    known.pods.put(pod(1, ended=None, deletion="2026-11-21T20:58:17Z", grace=600))

    assert next(iter(known.pods.records())).deletion.deadline == API_SERVER + 10 + CLOCK_MARGIN_SECONDS
