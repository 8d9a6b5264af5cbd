"""What was sent is not sent again until it shows, or until it has been looked up."""

from typing import Any

import pytest

from ddpjob_operator.core.model import (
    CreatePod,
    CreateService,
    DeletePod,
    Deletion,
    Job,
    LowerPodDeadline,
    Observed,
    Pod,
)
from ddpjob_operator.kube.engine import expectations as module
from ddpjob_operator.kube.engine.expectations import Expectations

KEY = ("ns", "j")
JOB = Job(namespace="ns", name="j", uid="j1", resource_version="1", generation=1, deleting=False, spec=None)
NOTHING: Any = None  # nobody renders these pods
CREATE_0, CREATE_1 = (CreatePod(name=name, manifest=NOTHING) for name in ("j-1-0", "j-1-1"))
CREATE_SERVICE = CreateService(name="j-master", body={})
DELETE = DeletePod(name="j-1-0", uid="p0", grace_seconds=5)
LOWER = LowerPodDeadline(name="j-1-0", uid="p0")


def pod(name: str, uid: str = "p0", deletion_deadline: float | None = None) -> Pod:
    fields: dict[str, Any] = dict.fromkeys(Pod.__dataclass_fields__)
    return Pod(
        **fields
        | {"name": name, "uid": uid, "deletion": Deletion(deadline=deletion_deadline) if deletion_deadline else None}
    )


def seen(*pods: Pod) -> Observed:
    return Observed(job=JOB, pods=pods)


def test_nothing_is_created_while_a_creation_has_not_shown() -> None:
    expectations = Expectations()
    expectations.sent(KEY, CREATE_0)
    assert expectations.open_actions(KEY, (CREATE_SERVICE, CREATE_1, DELETE, LOWER)) == (DELETE, LOWER)


def test_another_job_is_not_held_back() -> None:
    expectations = Expectations()
    expectations.sent(KEY, CREATE_0)
    assert expectations.open_actions(("ns", "other"), (CREATE_1,)) == (CREATE_1,)


def test_a_creation_that_shows_is_settled() -> None:
    expectations = Expectations()
    expectations.sent(KEY, CREATE_0)
    expectations.settle(KEY, seen(pod("j-1-0")))
    assert expectations.open_actions(KEY, (CREATE_1,)) == (CREATE_1,)
    assert expectations.seconds_left(KEY) is None


def test_a_refused_creation_is_not_expected() -> None:
    expectations = Expectations()
    expectations.sent(KEY, CREATE_0)
    expectations.failed(KEY, CREATE_0)
    assert expectations.open_actions(KEY, (CREATE_0,)) == (CREATE_0,)


@pytest.mark.parametrize("state", [(), (pod("j-1-0", deletion_deadline=9.0),), (pod("j-1-0", uid="p9"),)])
def test_a_deletion_has_shown_once_the_pod_is_going_or_gone(state: tuple[Pod, ...]) -> None:
    expectations = Expectations()
    expectations.sent(KEY, DELETE)
    expectations.settle(KEY, seen(pod("j-1-0")))
    assert expectations.open_actions(KEY, (DELETE,)) == ()
    expectations.settle(KEY, seen(*state))
    assert expectations.open_actions(KEY, (DELETE,)) == (DELETE,)


def test_an_unanswered_creation_must_be_looked_up_at_once() -> None:
    expectations = Expectations()
    expectations.sent(KEY, CREATE_0)
    left = expectations.seconds_left(KEY)
    assert left is not None
    assert 0 < left <= module.DEADLINE_SECONDS
    expectations.doubt(KEY, CREATE_0)
    left = expectations.seconds_left(KEY)
    assert left is not None
    assert left <= 0
    expectations.forget(KEY)
    assert expectations.open_actions(KEY, (CREATE_0,)) == (CREATE_0,)
