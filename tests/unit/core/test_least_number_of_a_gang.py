"""minNodes with a scheduler of gangs: so many pods get their nodes together, and the others one by one."""

from dataclasses import replace

import pytest

from ddpjob_operator.api.names import ProviderName, Reason
from ddpjob_operator.core.actions import CreateObject
from ddpjob_operator.core.model import Observed
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.records import object_of
from ddpjob_operator.scheduling.interface import Provider
from support.builders import NOW, changed, edited, job, observed, pod, pods_created, supervised, updated, with_status
from support.fewer_nodes import ASKS, COSCHEDULING, ELASTIC, KUEUE, NATIVE, VOLCANO, WAIT, growing, placed

with_groups = pytest.mark.parametrize("provider", [NATIVE, VOLCANO, COSCHEDULING], ids=lambda provider: provider.name)


def in_a_group(provider: Provider, num_placed: int, of=ELASTIC) -> Observed:
    """The first attempt in the group that the provider has created for it; so many of its pods have a node."""
    (group,) = [one for one in plan(observed(of), NOW, provider).actions if isinstance(one, CreateObject)]
    metadata = {**group.body["metadata"], "uid": "group", "resourceVersion": "1"}
    found = object_of(provider.watched[0], {**group.body, "metadata": {"creationTimestamp": "", **metadata}})
    pods = tuple(replace(one, scheduling=provider.name.value) for one in placed(num_placed, of).pods)
    seen = replace(observed(of, *pods), objects=(found,), all_of=lambda _: ())
    return with_status(seen, plan(seen, NOW, provider).status)


def test_a_queue_that_admits_all_or_none_ignores_it_and_the_status_says_so() -> None:
    pods = tuple(replace(one, scheduling="kueue") for one in placed(3).pods)
    seen = updated(replace(placed(3), pods=pods), scheduled_time=None)
    made = plan(seen, NOW + 10, KUEUE)
    assert made.status.attempt == 1
    assert "minNodes has no effect, since the scheduling provider is kueue" in (made.status.message or "")
    assert "pods with a node: 3, to be released" in (made.status.message or "")
    assert plan(seen, NOW + WAIT, KUEUE).status.shrunk_from is None


@with_groups
def test_a_gang_scheduler_gives_nodes_to_the_least_number_of_pods_together(provider: Provider) -> None:
    for of, least in (
        (job(nodes=4, minNodes=2, gpusPerNode=1), 2),
        (job(nodes=4, minNodes=4), 4),
        (job(nodes=4), 4),
    ):
        (group,) = [one for one in plan(observed(of), NOW, provider).actions if isinstance(one, CreateObject)]
        spec = group.body["spec"]
        assert (spec["schedulingPolicy"]["gang"]["minCount"] if provider is NATIVE else spec["minMember"]) == least
    if provider is VOLCANO:
        elastic = plan(observed(job(nodes=4, minNodes=2, gpusPerNode=8)), NOW, provider).actions
        (group,) = [one for one in elastic if isinstance(one, CreateObject)]
        assert group.body["spec"]["minResources"]["nvidia.com/gpu"] == "16", "what the least number needs"


@with_groups
@pytest.mark.parametrize(("num_placed", "size"), [(4, None), (3, 3), (2, 2), (1, None), (0, None)])
def test_a_gang_continues_on_the_nodes_that_its_scheduler_found_and_never_releases_them(
    provider: Provider, num_placed: int, size: int | None
) -> None:
    seen = in_a_group(provider, num_placed)
    assert plan(seen, NOW + WAIT - 1, provider).status.attempt == 1
    status = plan(seen, NOW + WAIT, provider).status
    assert (status.attempt, status.replicas, status.shrunk_from) == ((2, size, 4) if size else (1, 4, None))
    assert plan(seen, NOW + 99 * WAIT, provider).status.reason != Reason.GANG_GIVEN_BACK


@with_groups
def test_of_pods_beyond_the_least_number_the_status_says_what_they_wait_for(provider: Provider) -> None:
    message = str(plan(in_a_group(provider, 3), NOW + 1, provider).status.message)
    assert message.startswith("1 of 4 pods have no node: 0/2 nodes")
    assert "pods with a node: 3, on which the job continues if the others find none" in message
    assert "minNodes has no effect" not in message


@pytest.mark.parametrize("provider", [NATIVE, COSCHEDULING], ids=lambda provider: provider.name)
def test_a_gang_that_waits_for_its_least_number_says_so(provider: Provider) -> None:
    message = str(plan(in_a_group(provider, 0), NOW + 1, provider).status.message)
    assert message.startswith("no nodes for 2 of the 4 pods together: 0/2 nodes")


@with_groups
@pytest.mark.parametrize(
    ("num_placed", "least", "is_replaced"), [(0, 1, True), (0, None, True), (3, 4, True), (4, 1, False), (0, 2, False)]
)
def test_a_gang_that_waits_gets_a_group_of_another_least_number(
    provider: Provider, num_placed: int, least: int | None, is_replaced: bool
) -> None:
    """The group of a gang that runs or waits for a lost pod alone is of no importance any more.

    In Kubernetes 1.37 the size of a group can change. A gang that has nodes, but too few, would hold them for the others.
    """
    seen = edited(in_a_group(provider, num_placed), min_nodes=least)
    after = plan(seen, NOW + 1, provider).status
    assert after.attempt == (2 if is_replaced and not (provider is NATIVE and num_placed == 0) else 1)
    assert (after.restarts.counted, after.restarts.infrastructure) == (0, 0)


@with_groups
@pytest.mark.parametrize("least", [2, None])
def test_a_changed_least_number_does_not_stop_the_pods_that_wait_for_a_replaced_one(
    provider: Provider, least: int | None
) -> None:
    """They have work in memory, and the new pod gets its node alone: the group has had its own."""
    of = job(nodes=4, minNodes=3, restart={"inPlace": True})
    group = in_a_group(provider, 4, of)
    ranks = [supervised(of, rank, scheduling=provider.name.value) for rank in range(4)]
    seen = replace(group, pods=tuple(ranks))
    seen = with_status(seen, plan(seen, NOW, provider).status)
    gone = changed(ranks[3], running=False, disruption="DeletionByTaintManager: lost", deletion_deadline=NOW + 370)
    lost = replace(seen, pods=(*ranks[:3], gone), nodes_gone=frozenset({"node-3"}))
    waits = with_status(lost, plan(lost, NOW + 400, provider).status)
    assert waits.job.status.replacement(3) == 1
    assert plan(edited(waits, min_nodes=least), NOW + 401, provider).status.attempt == 1


@with_groups
def test_a_pod_that_waits_for_a_missing_node_belongs_to_the_group_of_the_others(provider: Provider) -> None:
    """So its queue and its scheduler are those of the job."""
    seen = growing()
    small = replace(seen.job, spec=seen.job.spec_of_attempt)
    pods = tuple(pod(small, rank, 2, scheduling=provider.name.value) for rank in range(3))
    made = plan(replace(seen, pods=pods, all_of=lambda _: ()), ASKS, provider)
    (place,) = [action.body for action in pods_created(made)]
    assert place["metadata"]["name"] == "job-2-3-place"
    group = "job-2-uuid"
    match provider.name:
        case ProviderName.NATIVE:
            assert place["spec"]["schedulingGroup"] == {"podGroupName": group}
        case ProviderName.VOLCANO:
            assert place["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == group
            assert place["spec"]["schedulerName"] == "volcano"
        case _:
            assert place["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == group
            assert place["spec"]["schedulerName"] == "scheduler-plugins-scheduler"
