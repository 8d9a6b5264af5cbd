"""A pod that is replaced within its attempt, under each scheduling provider: it joins the group of the others."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.api.names import ProviderName
from ddpjob_operator.core.actions import CreateObject, CreatePod, DeletePod, PatchObject, Plan
from ddpjob_operator.core.model import Deletion, Membership, Observed, Pod, Waiting
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.records import object_of
from ddpjob_operator.scheduling.discovery import newest
from ddpjob_operator.scheduling.interface import Provider
from support.builders import NOW, created, job, observed, supervised, with_status

JOB = job(nodes=3, gpusPerNode=1, restart={"inPlace": True, "maxRestarts": 9})
#: Long enough for an attempt to be healthy, after which there is no back-off.
LATER = NOW + 400
PROVIDERS = [newest(name) for name in ProviderName]
WITH_GROUPS = [provider for provider in PROVIDERS if provider.places_whole_gangs]
KUEUE = newest(ProviderName.KUEUE)
BY_NAME: Any = {"ids": lambda provider: provider.name}


def reconciled(provider: Provider, seen: Observed, now: float = LATER) -> Observed:
    return with_status(seen, plan(seen, now, provider).status)


def members(provider: Provider, seen: Observed, *ranks: int, **changes: Any) -> list[Pod]:
    """Running pods of these ranks, as the provider marks its own."""
    is_none, group = provider.name is ProviderName.NONE, Membership(group="job-1-f3c2", is_held=True, closes=False)
    marks = {"scheduling": "" if is_none else provider.name.value}
    membership = {"membership": group if provider is KUEUE else None}
    return [supervised(seen.job, rank, **marks, **membership, **changes) for rank in ranks]


def running(provider: Provider) -> Observed:
    """The gang, with the group that the provider created for it."""
    seen = observed(JOB)
    made = [action for action in plan(seen, NOW, provider).actions if isinstance(action, CreateObject)]
    groups = []
    for number, action in enumerate(made):
        metadata = {**action.body["metadata"], "uid": f"group-{number}", "resourceVersion": "1"}
        groups.append(object_of(provider.watched[0], {**action.body, "metadata": metadata}))
    return reconciled(provider, replace(seen, pods=tuple(members(provider, seen, 0, 1, 2)), objects=tuple(groups)), NOW)


def without(seen: Observed, rank: int) -> Observed:
    return replace(seen, pods=tuple(pod for pod in seen.pods if pod.rank != rank))


def after_loss(provider: Provider, *left: Pod) -> Observed:
    """Rank 1 was lost, and the status says so; `left` is what is left of it."""
    seen = without(running(provider), 1)
    return reconciled(provider, replace(seen, pods=(*seen.pods, *left)))


def group_of(body: Mapping[str, Any]) -> object:
    """The group that a pod names, in the way of its provider."""
    metadata = body["metadata"]
    return (
        body["spec"].get("schedulingGroup")
        or metadata["labels"].get("scheduling.x-k8s.io/pod-group")
        or metadata["labels"].get("kueue.x-k8s.io/pod-group-name")
        or metadata["annotations"].get("scheduling.k8s.io/group-name")
    )


@pytest.mark.parametrize("provider", PROVIDERS, **BY_NAME)
def test_a_lost_pod_is_replaced_in_the_group_of_the_others(provider: Provider) -> None:
    lost = after_loss(provider)
    assert (lost.job.status.attempt, [p.rank for p in lost.job.status.replaced_pods]) == (1, [1])
    (action,) = plan(lost, LATER, provider).actions
    assert isinstance(action, CreatePod)
    assert action.name == "job-1-1-r1"
    groups = {"none": None, "kueue": "job-1-f3c2", "native": {"podGroupName": "job-1-uuid"}}
    assert group_of(action.body) == groups.get(provider.name, "job-1-uuid")
    labels, annotations = action.body["metadata"]["labels"], action.body["metadata"]["annotations"]
    if provider is KUEUE:
        assert labels["kueue.x-k8s.io/pod-group-pod-index"] == "1"
        assert annotations["kueue.x-k8s.io/pod-group-total-count"] == "3"


@pytest.mark.parametrize("now_used", PROVIDERS, **BY_NAME)
@pytest.mark.parametrize("provider", [KUEUE, *WITH_GROUPS], **BY_NAME)
def test_a_gang_of_a_group_restarts_as_a_whole_under_another_provider(provider: Provider, now_used: Provider) -> None:
    seen = without(running(provider), 1)
    assert plan(seen, LATER, now_used).status.attempt == (1 if now_used is provider else 2)


@pytest.mark.parametrize("now_used", PROVIDERS, **BY_NAME)
def test_a_pod_of_a_gang_without_a_group_is_replaced_by_one_without(now_used: Provider) -> None:
    seen = without(running(newest(ProviderName.NONE)), 1)
    (action,) = plan(reconciled(now_used, seen), LATER, now_used).actions
    assert isinstance(action, CreatePod)
    assert group_of(action.body) is None


@pytest.mark.parametrize("provider", WITH_GROUPS, **BY_NAME)
def test_a_replaced_pod_that_finds_no_node_says_why_and_the_gang_releases_its_nodes(provider: Provider) -> None:
    lost = after_loss(provider)
    why = Waiting(reason="Unschedulable", message="0/3 nodes are available: 3 Insufficient nvidia.com/gpu")
    (pod,) = members(provider, lost, 1, node=None, running=False, waiting=why)
    seen = reconciled(provider, replace(lost, pods=(*lost.pods, pod)), LATER + 1)
    assert str(seen.job.status.message).startswith("1 of 3 pods have no node: 0/3 nodes have nvidia.com/gpu: 1 free")
    assert seen.job.status.attempt == 1
    later = plan(seen, LATER + 100, provider).status
    assert (later.attempt, later.reason) == (2, "GangGivenBack")


@pytest.mark.parametrize("provider", WITH_GROUPS, **BY_NAME)
def test_the_scheduler_that_has_not_considered_a_replaced_pod_is_named(provider: Provider) -> None:
    lost = after_loss(provider)
    (pod,) = members(provider, lost, 1, node=None, running=False)
    seen = reconciled(provider, replace(lost, pods=(*lost.pods, pod)), LATER + 1)
    schedulers = {"native": "default-scheduler", "coscheduling": "scheduler-plugins-scheduler"}
    name = schedulers.get(provider.name, provider.name.value)
    assert str(seen.job.status.message).startswith(f"1 of 3 pods have not been considered by the scheduler {name} yet")


def test_a_replaced_pod_of_a_lost_node_is_removed_from_its_queue_before_its_successor_is_created() -> None:
    """Kueue counts it, and would delete the successor as one pod too many."""
    lost = {"deletion": Deletion(deadline=LATER - 60), "disruption": "DeletionByTaintManager: node"}
    (left,) = members(KUEUE, observed(JOB), 1, **lost)
    seen = replace(after_loss(KUEUE, left), nodes_gone=frozenset({"node-1"}))
    made = plan(seen, LATER + 1, KUEUE)
    assert created(made) == []
    assert "waiting for pod job-1-1 on a lost node to be removed" in str(made.status.message)
    assert removed(made) == ["job-1-1", "finalizer of job-1-1"]

    released = replace(left, membership=Membership(group="job-1-f3c2", is_held=False, closes=False))
    pods = tuple(released if pod is left else pod for pod in seen.pods)
    assert created(plan(replace(seen, pods=pods), LATER + 1, KUEUE)) == []
    assert created(plan(replace(seen, pods=tuple(p for p in pods if p is not released)), LATER + 2, KUEUE)) == [
        "job-1-1-r1"
    ]


def removed(made: Plan) -> list[str]:
    names = []
    for action in made.actions:
        if isinstance(action, DeletePod) and action.grace_seconds == 0:
            names.append(action.name)
        if isinstance(action, PatchObject) and action.patch["metadata"]["finalizers"] is None:
            names.append(f"finalizer of {action.name}")
    return names


def test_a_pod_that_the_queue_has_evicted_is_not_replaced_since_all_others_are_evicted() -> None:
    evicted = {"deletion": Deletion(deadline=LATER), "disruption": "WorkloadEvictedDueToPreempted: for another"}
    (pod,) = members(KUEUE, observed(JOB), 1, **evicted, all_ended=True, phase="Failed", running=False)
    seen = without(running(KUEUE), 1)
    made = plan(replace(seen, pods=(*seen.pods, pod)), LATER, KUEUE)
    assert (made.status.attempt, made.status.reason) == (2, "Preempted")
