"""What was sent is not sent again until it shows, or until it has been looked up."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.core.actions import CreateObject, CreatePod, DeletePod, LowerPodDeadline
from ddpjob_operator.core.model import SERVICE, Deletion, Observed, Pod
from ddpjob_operator.kube.engine import expectations as module
from ddpjob_operator.kube.engine.expectations import Expectations
from ddpjob_operator.kube.engine.job_memory import JobMemories
from support.lookup_jobs import JOB, KEY, rank0

NOTHING: Any = None  # nobody renders these pods
CREATE_0, CREATE_1 = (CreatePod(name=name, manifest=NOTHING) for name in ("j-1-0", "j-1-1"))
CREATE_SERVICE = CreateObject(kind=SERVICE, name="j-master", body={})
DELETE = DeletePod(name="j-1-0", uid="p0", grace_seconds=5)
LOWER = LowerPodDeadline(name="j-1-0", uid="p0")


def pod(name: str, uid: str = "p0", deletion_deadline: float | None = None) -> Pod:
    deletion = Deletion(deadline=deletion_deadline) if deletion_deadline else None
    return replace(rank0(uid), name=name, deletion=deletion)


def seen(*pods: Pod) -> Observed:
    return Observed(job=JOB, pods=pods)


@pytest.fixture
def creating() -> Expectations:
    """A creation was sent and has not shown."""
    expectations = Expectations(JobMemories())
    expectations.sent(KEY, CREATE_0)
    return expectations


def test_nothing_is_created_while_a_creation_has_not_shown(creating: Expectations) -> None:
    assert creating.open_actions(KEY, (CREATE_SERVICE, CREATE_1, DELETE, LOWER)) == (DELETE, LOWER)
    assert creating.open_actions(("ns", "other"), (CREATE_1,)) == (CREATE_1,), "another job is not held back"


def test_a_creation_that_shows_is_settled(creating: Expectations) -> None:
    creating.settle(KEY, seen(pod("j-1-0")))
    assert creating.open_actions(KEY, (CREATE_1,)) == (CREATE_1,)
    assert creating.seconds_left(KEY) is None


def test_a_refused_creation_is_not_expected(creating: Expectations) -> None:
    creating.failed(KEY, CREATE_0)
    assert creating.open_actions(KEY, (CREATE_0,)) == (CREATE_0,)


@pytest.mark.parametrize("state", [(), (pod("j-1-0", deletion_deadline=9.0),), (pod("j-1-0", uid="p9"),)])
def test_a_deletion_has_shown_once_the_pod_is_marked_or_gone(state: tuple[Pod, ...]) -> None:
    expectations = Expectations(JobMemories())
    expectations.sent(KEY, DELETE)
    expectations.settle(KEY, seen(pod("j-1-0")))
    assert expectations.open_actions(KEY, (DELETE,)) == ()
    expectations.settle(KEY, seen(*state))
    assert expectations.open_actions(KEY, (DELETE,)) == (DELETE,)


def test_an_unanswered_creation_must_be_looked_up_at_once(creating: Expectations) -> None:
    assert 0 < creating.seconds_left(KEY) <= module.DEADLINE_SECONDS
    creating.doubt(KEY, CREATE_0)
    assert creating.seconds_left(KEY) <= 0
    creating.meet_all(KEY)
    assert creating.open_actions(KEY, (CREATE_0,)) == (CREATE_0,)
