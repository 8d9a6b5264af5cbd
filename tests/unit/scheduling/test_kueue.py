"""Kueue: which group a pod joins, when a group is closed, and what a job that waits says."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.api.status import Condition, DDPJobStatus
from ddpjob_operator.core.actions import CreatePod, DeletePod, PatchObject, Plan
from ddpjob_operator.core.model import GATED, Deletion, Job, Kind, Membership, Observed, OwnedObject, Pod, Waiting
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.policies.whole_gang import QUEUE_SECONDS
from ddpjob_operator.core.records import object_of, pod_of
from ddpjob_operator.scheduling.kueue import CANDIDATE
from support.builders import NOW, crashed, ended, job, observed, pending, pod

KUEUE = CANDIDATE.of_versions(["v1beta2"])
assert KUEUE is not None
WORKLOADS, LOCAL_QUEUES = KUEUE.watched
TIME = "2026-01-01T00:00:00Z"
CREATED = [Condition(type="Created", status="True", reason="Created", last_transition_time=TIME)]
FAILED = [Condition(type="Failed", status="True", reason="Failed", last_transition_time=TIME)]


def queued_job(attempt: int = 1, **spec: Any) -> Job:
    of = job(DDPJobStatus(attempt=attempt), nodes=2, scheduling={"queueName": "team-a"}, **spec)
    return replace(of, uid="f3c20000")


def member(of: Pod, group: str = "job-1-f3c2", *, is_held: bool = True, closes: bool = False) -> Pod:
    """The pod in a group of Kueue."""
    return replace(of, scheduling="kueue", membership=Membership(group=group, is_held=is_held, closes=closes))


def failed(of: Job, rank: int = 0, **changes: Any) -> Pod:
    return member(crashed(of, rank, phase="Failed"), **changes)


def planned(seen: Observed) -> Plan:
    assert KUEUE is not None
    return plan(seen, NOW, KUEUE)


def created(seen: Observed) -> list[dict[str, Any]]:
    return [dict(action.body) for action in planned(seen).actions if isinstance(action, CreatePod)]


def closed(seen: Observed) -> list[str]:
    return [
        action.name for action in planned(seen).actions if isinstance(action, PatchObject) and action.kind.kind == "Pod"
    ]


def released(made: Plan) -> list[str]:
    """The pods whose finalizers are removed, which is all that is patched."""
    patches = [action for action in made.actions if isinstance(action, PatchObject)]
    assert all(patch.patch["metadata"]["finalizers"] is None for patch in patches)
    return [patch.name for patch in patches]


def test_pods_are_members_of_a_group_in_the_order_of_ranks() -> None:
    metadata = [body["metadata"] for body in created(observed(queued_job()))]

    assert [m["labels"]["kueue.x-k8s.io/pod-group-pod-index"] for m in metadata] == ["0", "1"]
    for m in metadata:
        assert m["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
        assert m["labels"]["kueue.x-k8s.io/pod-group-name"] == "job-1-f3c2"
        assert m["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "2"
    assert len({m["annotations"]["kueue.x-k8s.io/role-hash"] for m in metadata}) == 1


@pytest.mark.parametrize("mode", ["required", "preferred"])
def test_a_topology_is_that_of_the_pod_set(mode: str) -> None:
    of = job(nodes=1, scheduling={"queueName": "q", "topology": {"key": "rack", "mode": mode}})
    (body,) = created(observed(of))
    assert body["metadata"]["annotations"][f"kueue.x-k8s.io/podset-{mode}-topology"] == "rack"


def test_the_pods_of_a_restart_take_the_places_of_those_that_failed() -> None:
    of = queued_job(attempt=3)
    old = [member(crashed(of, rank, attempt=2, phase="Failed")) for rank in range(2)]
    bodies = created(observed(of, *old))
    assert {body["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] for body in bodies} == {"job-1-f3c2"}


@pytest.mark.parametrize(
    "change",
    [
        {"phase": "Succeeded"},
        {"phase": "Running"},
        {"membership": Membership(group="job-1-f3c2", is_held=True, closes=True)},
        {"membership": Membership(group="job-1-f3c2", is_held=False, closes=False), "rank": 1},
        {"spec_hash": "another"},
    ],
    ids=["one succeeded", "one is lost with its node", "it is closed", "nothing holds it", "the spec was edited"],
)
def test_the_next_attempt_has_a_group_of_its_own_where_kueue_would_not_replace_a_pod(change: dict[str, Any]) -> None:
    of = queued_job(attempt=2)
    seen = observed(of, replace(failed(of), **change))
    bodies = created(seen)
    assert {body["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] for body in bodies} == {"job-2-f3c2"}


def test_a_pod_that_is_created_late_joins_the_others() -> None:
    of = queued_job(attempt=2)
    seen = observed(of, failed(of, group="job-0-f3c2"), member(pending(of, attempt=2), "job-1-f3c2"))
    (body,) = created(seen)
    assert body["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] == "job-1-f3c2"


def test_a_group_that_no_pod_joins_again_is_closed_once() -> None:
    of = queued_job(attempt=2)
    current = [member(pod(of, rank, attempt=2), "job-2-f3c2") for rank in range(2)]
    old = [failed(of, 0), failed(of, 1)]

    assert closed(observed(of, *old, *current)) == ["job-1-0"]
    assert closed(observed(of, failed(of, closes=True), *current)) == []
    assert closed(observed(of, *(failed(of, rank, is_held=False) for rank in range(2)), *current)) == []


def test_a_pod_on_a_lost_node_does_not_keep_the_quota_of_its_group() -> None:
    of = queued_job(attempt=2)
    current = [member(pod(of, rank, attempt=2), "job-2-f3c2") for rank in range(2)]
    lost = member(pod(of, 1, deletion=Deletion(deadline=NOW - 100)), closes=True)
    seen = observed(of, failed(of), lost, *current)

    assert closed(seen) == []
    assert released(planned(replace(seen, nodes_gone=frozenset({"node-1"})))) == ["job-1-1"]
    waits = observed(of, failed(of), lost, nodes_gone=frozenset({"node-1"}))
    assert closed(waits) == [], "its node may come back until the next attempt has begun"


def test_a_job_that_waits_between_two_attempts_keeps_its_quota() -> None:
    of = queued_job(attempt=2)
    still_running = member(pod(of, 1, deletion=Deletion(deadline=NOW + 10)))
    assert closed(observed(of, failed(of), still_running)) == []


def not_running(why: str) -> Job:
    of = queued_job(attempt=2, suspend=why == "suspended")
    if why == "finished":
        end = {"phase": "Failed", "completion_time": TIME, "conditions": FAILED}
        of = replace(of, status=of.status.model_copy(update=end))
    return replace(of, deleting=why == "deleting")


@pytest.mark.parametrize("why", ["suspended", "finished", "deleting"])
def test_the_quota_of_a_job_that_does_not_run_is_returned(why: str) -> None:
    of = not_running(why)
    assert closed(observed(of, failed(of))) == ["job-1-0"]


@pytest.mark.parametrize("why", ["finished", "deleting"])
def test_the_quota_of_the_attempt_with_which_a_job_ends_is_returned(why: str) -> None:
    of = not_running(why)
    of = replace(of, status=of.status.model_copy(update={"attempt": 1}))
    assert closed(observed(of, failed(of))) == ["job-1-0"]


@pytest.mark.parametrize("why", ["suspended", "finished"])
def test_a_pod_on_a_lost_node_does_not_keep_the_quota_of_a_job_that_does_not_run(why: str) -> None:
    """Kueue waited for its end, so the quota was not returned before the node was there again."""
    of = not_running(why)
    lost = member(pod(of, 1, deletion=Deletion(deadline=NOW - 100)), closes=True)
    made = planned(observed(of, failed(of), lost, nodes_gone=frozenset({"node-1"})))
    assert released(made) == ["job-1-1"]
    assert [(gone.name, gone.grace_seconds) for gone in made.actions if isinstance(gone, DeletePod)] == [("job-1-1", 0)]


def body_of_a_member(**status: Any) -> dict[str, Any]:
    """Rank 0 as the API server sends it, held by Kueue."""
    labels = {"ddpjob.dev/job-uid": "u", "ddpjob.dev/attempt": "1", "ddpjob.dev/rank": "0"}
    labels["kueue.x-k8s.io/pod-group-name"] = "job-1-f3c2"
    metadata: dict[str, Any] = {
        "name": "job-1-0",
        "uid": "p",
        "labels": labels,
        "finalizers": ["kueue.x-k8s.io/managed"],
    }
    metadata["ownerReferences"] = [{"kind": "DDPJob", "uid": "u", "controller": True}]
    return {"metadata": metadata, "spec": {"containers": [{"name": "trainer"}], "nodeName": "n"}, "status": status}


def test_a_pod_counts_as_stopped_when_kueue_sees_its_end() -> None:
    """Kueue goes by the phase: it deletes a pod that is created before that of the old one has changed."""
    containers = [{"name": "trainer", "state": {"terminated": {"exitCode": 1}}}]
    body = body_of_a_member(phase="Running", containerStatuses=containers)
    released = {**body, "metadata": {**body["metadata"], "finalizers": []}}

    assert not pod_of(body).all_ended
    assert pod_of(released).all_ended
    assert pod_of(body_of_a_member(phase="Failed", containerStatuses=containers)).all_ended


def test_kueue_says_why_it_deletes_a_pod() -> None:
    reason = {"reason": "WorkloadEvictedDueToPreempted", "message": "for another"}
    read = pod_of(body_of_a_member(conditions=[{"type": "TerminationTarget", "status": "True", **reason}]))
    assert read.disruption == "WorkloadEvictedDueToPreempted: for another"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("WorkloadEvictedDueToPreempted", "Preempted"), ("WorkloadEvictedDueToClusterQueueStopped", "Evicted")],
)
def test_an_eviction_by_kueue_is_a_restart_that_does_not_count(reason: str, expected: str) -> None:
    of = replace(queued_job(), status=DDPJobStatus(attempt=1, conditions=CREATED))
    taken = [
        member(ended(of, rank, code=75, phase="Failed", disruption=f"{reason}: why", deletion=Deletion(deadline=NOW)))
        for rank in range(2)
    ]
    status = planned(observed(of, *taken)).status
    assert (status.attempt, status.reason, status.restarts.counted) == (2, expected, 0)


def workload(
    name: str, *, queue: str = "team-a", namespace: str = "default", since: int = 0, **status: Any
) -> OwnedObject:
    """A Workload as the API server holds it."""
    metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}/{name}", "resourceVersion": "1"}
    metadata |= {"creationTimestamp": f"2026-01-01T00:00:{since:02}Z"}
    metadata |= {"annotations": {"kueue.x-k8s.io/is-group-workload": "true"}}  # type: ignore[dict-item]
    return object_of(WORKLOADS, {"metadata": metadata, "spec": {"queueName": queue, "podSets": [{}]}, "status": status})


def own(**status: Any) -> OwnedObject:
    """The Workload of the job itself, the newest of all."""
    return workload("job-1-f3c2", since=9, **status)


def condition(type_: str, status: str, message: str = "") -> dict[str, str]:
    return {"type": type_, "status": status, "message": message}


def admitted(gpus: int) -> dict[str, Any]:
    assignment = {"flavors": {"nvidia.com/gpu": "a100"}, "resourceUsage": {"nvidia.com/gpu": str(gpus)}}
    admission = {"clusterQueue": "cq", "podSetAssignments": [assignment]}
    return {"admission": admission, "conditions": [condition("QuotaReserved", "True"), condition("Admitted", "True")]}


MISSING = "couldn't assign flavors to pod set ranks: insufficient unused quota for nvidia.com/gpu in flavor a100, 4 more needed"
TOO_LARGE = (
    "couldn't assign flavors to pod set ranks: insufficient quota for nvidia.com/gpu in flavor a100, previously considered podsets"
    " requests (0) + current podset request (12) > maximum capacity (8)"
)
REQUESTS = [{"name": "ranks", "resources": {"nvidia.com/gpu": "4"}}]
LARGER = [{"name": "ranks", "resources": {"nvidia.com/gpu": "6"}}]
REFUSED: dict[str, Any] = {"conditions": [condition("QuotaReserved", "False", MISSING)], "resourceRequests": REQUESTS}
WAITS: dict[str, Any] = {"conditions": [condition("QuotaReserved", "False", "")]}


@pytest.mark.parametrize(
    ("workloads", "expected"),
    [
        ([], "Kueue has not made the workload job-1-f3c2 yet"),
        ([own(**REFUSED), workload("llm-3-0a1b", namespace="team-b", queue="b", **admitted(8))], "quota gpu: 8 of 8 used by team-b/llm"),
        (
            [own(**{**REFUSED, "resourceRequests": LARGER}), *(workload(f"x{n}-1-0a1b", **admitted(2)) for n in range(5))],
            "quota gpu: 10 used by default/x0, default/x1, default/x2 and 2 more, at least 4 more needed in flavor a100",
        ),
        ([own(**WAITS), *(workload(f"x{n}-1-0a1b", since=n, **WAITS) for n in range(3))], "3 jobs before it"),
        ([own(conditions=[condition("QuotaReserved", "False", "LocalQueue team-a doesn't exist")])], "LocalQueue team-a doesn't exist"),
        (
            [own(conditions=[condition("QuotaReserved", "True")], admissionChecks=[{"name": "prov", "state": "Pending"}])],
            "admission check prov is Pending",
        ),
        ([own(**REFUSED)], "quota gpu: at least 4 more needed in flavor a100"),
        (
            [own(conditions=[condition("QuotaReserved", "False", TOO_LARGE)])],
            "quota gpu: 12 requested, but the queue can have 8 at most in flavor a100; use fewer nodes or raise the quota",
        ),
    ],
)  # fmt: skip
def test_a_job_says_what_it_waits_behind(workloads: list[OwnedObject], expected: str) -> None:
    queues = []
    for namespace, name in (("default", "team-a"), ("team-b", "b")):
        metadata = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1"}
        queues.append(object_of(LOCAL_QUEUES, {"metadata": metadata, "spec": {"clusterQueue": "cq"}}))
    known: dict[Kind, list[OwnedObject]] = {WORKLOADS.kind: workloads, LOCAL_QUEUES.kind: queues}
    of = replace(queued_job(), status=DDPJobStatus(attempt=1, conditions=CREATED))
    gated = [member(pending(of, rank, waiting=Waiting(reason=GATED, message="gated"))) for rank in range(2)]
    made = planned(replace(observed(of, *gated), all_of=known.__getitem__))

    assert (made.status.reason, made.status.message) == ("Queued", f"queued in team-a: {expected}")
    assert made.wake_at == NOW + QUEUE_SECONDS
