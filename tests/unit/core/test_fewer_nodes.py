"""minNodes: a gang that does not get all its nodes in time continues on fewer."""

from dataclasses import replace
from typing import Any

import pytest

from builders import (
    ECHO,
    NOW,
    changed,
    created,
    deleted,
    edited,
    ended,
    job,
    observed,
    pending,
    pod,
    reconciled,
    running,
    supervised,
    updated,
    with_status,
)
from ddpjob_operator.api.names import Phase, ProviderName, Reason
from ddpjob_operator.api.scheduling import GangMode
from ddpjob_operator.api.status import Condition
from ddpjob_operator.core.actions import CreateObject, CreatePod, ReadNode
from ddpjob_operator.core.model import NO_LOG, Observed, Pod, ScaleUp, Waiting
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.policies.partial_gang import HOLD_SECONDS
from ddpjob_operator.core.policies.size import HELD_SECONDS
from ddpjob_operator.core.records import object_of
from ddpjob_operator.core.render.pods import spec_hash
from ddpjob_operator.core.times import rfc3339
from ddpjob_operator.scheduling.discovery import newest
from ddpjob_operator.scheduling.interface import Provider

NO_NODE = Waiting(reason="Unschedulable", message="0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
WAIT = 120.0
ELASTIC = job(nodes=4, minNodes=2, deadlines={"fullSizeSeconds": int(WAIT)})


def placed(num_placed: int, of=ELASTIC) -> Observed:
    """The first attempt; so many of its pods run, and no node has room for the others."""
    pods = (pod(of, rank) if rank < num_placed else pending(of, rank, waiting=NO_NODE) for rank in range(4))
    return reconciled(observed(of, *pods))


def shrunk(num_placed: int = 3, of=ELASTIC) -> Observed:
    """The attempt that follows, running on fewer nodes."""
    after = reconciled(placed(num_placed, of), NOW + WAIT)
    assert after.job.status.attempt == 2
    small = replace(after.job, spec=after.job.spec.model_copy(update={"nodes": num_placed}))
    pods = tuple(pod(small, rank, 2) for rank in range(num_placed))
    return reconciled(replace(after, pods=pods), NOW + WAIT + 10)


@pytest.mark.parametrize(("num_placed", "size"), [(4, None), (3, 3), (2, 2), (1, None), (0, None)])
def test_the_next_attempt_has_as_many_nodes_as_found_one_but_no_fewer_than_the_least(
    num_placed: int, size: int | None
) -> None:
    status = plan(placed(num_placed), NOW + WAIT).status
    assert (status.replicas if status.reason == Reason.RESIZED else None) == size
    assert (status.restarts.counted, status.restarts.infrastructure, status.failure) == (0, 0, None)
    assert status.shrunk_from == (4 if size else None)


def test_it_waits_for_all_nodes_as_long_as_the_job_says_and_not_for_an_autoscaler() -> None:
    seen = replace(placed(3), scale_up=ScaleUp(since=NOW, latest=NOW))
    before = plan(seen, NOW + WAIT - 1)
    assert (before.status.attempt, before.wake_at) == (1, NOW + WAIT)
    assert plan(seen, NOW + WAIT).status.attempt == 2


def test_it_waits_from_the_first_node_that_it_gets() -> None:
    """The API server may have refused the pods for longer than that."""
    seen = placed(3)
    late = replace(seen, pods=tuple(replace(one, placed=NOW + 100 if one.node else None) for one in seen.pods))
    before = plan(late, NOW + 100 + WAIT - 1)
    assert (before.status.attempt, before.wake_at) == (1, NOW + 100 + WAIT)
    assert plan(late, NOW + 100 + WAIT).status.attempt == 2


def test_without_enough_nodes_it_releases_those_that_it_has_and_begins_with_all_again() -> None:
    status = plan(placed(1), NOW + 1.5 * HOLD_SECONDS).status
    assert (status.reason, status.replicas) == (Reason.GANG_GIVEN_BACK, None)


def test_a_program_that_waits_for_less_time_for_all_ranks_continues_on_fewer_nodes_after_as_long_in_all() -> None:
    """torchrun and torch itself wait for ten minutes or so, and the job for nodes that an autoscaler adds."""
    of = job(nodes=4, minNodes=2, deadlines={"fullSizeSeconds": 900})

    def timed_out(seen: Observed, at: float, why: Waiting | None = NO_NODE) -> Observed:
        attempt = seen.job.status.attempt
        there = (pod(of, rank, attempt) for rank in range(3))
        none = replace(pending(of, 3, waiting=why), name=f"job-{attempt}-3", attempt=attempt)
        waiting = reconciled(replace(seen, pods=(*there, none)), at)
        over = (ended(of, rank, attempt, code=1, message=ECHO, ended_seen=at + 590) for rank in range(3))
        return reconciled(replace(waiting, pods=(*over, none)), at + 600)

    first = timed_out(observed(of), NOW)
    assert (first.job.status.reason, first.job.status.replicas) == (Reason.GANG_GIVEN_BACK, None)
    second = timed_out(first, NOW + 620).job.status
    assert (second.attempt, second.reason, second.replicas, second.shrunk_from) == (3, Reason.RESIZED, 3, 4)
    assert timed_out(first, NOW + 620, why=None).job.status.reason == Reason.GANG_GIVEN_BACK, "it may get one now"


def test_the_smaller_attempt_follows_without_a_pause_and_its_pods_know_its_size() -> None:
    seen = reconciled(placed(3), NOW + WAIT)
    assert (seen.job.status.phase, seen.job.status.retry_time) == (Phase.RESTARTING, None)
    assert set(deleted(plan(seen, NOW + WAIT))) == {f"job-1-{rank}" for rank in range(4)}
    made = plan(replace(seen, pods=()), NOW + WAIT + 1)
    assert created(made) == ["job-2-0", "job-2-1", "job-2-2"]
    for action in made.actions:
        if isinstance(action, CreatePod):
            env = {one["name"]: one.get("value") for one in action.body["spec"]["containers"][0]["env"]}
            assert (env["WORLD_SIZE"], env["PET_NNODES"]) == ("3", "3")


def test_the_smaller_attempt_has_its_own_time_to_get_its_nodes() -> None:
    """deadlines.queueSeconds passed while the pods of the larger attempt stopped, and ended the job that had its nodes."""
    of = job(nodes=4, minNodes=2, deadlines={"fullSizeSeconds": int(WAIT), "queueSeconds": int(WAIT) + 5})
    smaller = reconciled(placed(3, of), NOW + WAIT)
    assert smaller.job.status.reason == Reason.RESIZED
    made = plan(replace(smaller, pods=()), NOW + WAIT + 10)
    assert created(made) == ["job-2-0", "job-2-1", "job-2-2"]
    later = plan(reconciled(replace(smaller, pods=()), NOW + WAIT + 10), NOW + 2 * WAIT + 15).status
    assert (later.phase, later.reason) == (Phase.FAILED, Reason.QUEUE_DEADLINE)


@pytest.mark.parametrize(("num_placed", "phase", "size"), [(3, Phase.RESTARTING, 3), (1, Phase.FAILED, 4)])
@pytest.mark.parametrize("why", [NO_NODE, None], ids=["refused", "not considered"])
def test_the_end_of_the_queue_deadline_is_fewer_nodes_where_it_has_enough_of_them(
    num_placed: int, phase: Phase, size: int, why: Waiting | None
) -> None:
    of = job(nodes=4, minNodes=2, deadlines={"fullSizeSeconds": 900, "queueSeconds": 60})
    seen = placed(num_placed, of)
    seen = replace(seen, pods=tuple(replace(one, waiting=why if one.node is None else None) for one in seen.pods))
    before = plan(seen, NOW + 10)
    assert (before.status.attempt, before.status.phase) == (1, Phase.PENDING)
    assert before.wake_at is not None
    assert before.wake_at <= NOW + 60
    after = plan(seen, NOW + 60).status
    assert (after.phase, after.replicas) == (phase, size)
    assert "deadlines.queueSeconds (1m0s)" in (after.message or "")


def test_the_queue_deadline_does_not_run_while_it_runs_on_fewer_nodes() -> None:
    of = job(nodes=4, minNodes=2, deadlines={"fullSizeSeconds": int(WAIT), "queueSeconds": int(WAIT) + 5})
    seen = shrunk(3, of)
    assert plan(seen, NOW + 9999).status.phase == Phase.RUNNING


def test_it_runs_and_the_status_has_both_sizes() -> None:
    seen = shrunk(3)
    status = seen.job.status
    assert (status.phase, status.ready, status.replicas, status.shrunk_from) == (Phase.RUNNING, "3/3", 3, 4)
    assert (status.message or "").startswith("all 3 pods run, of 4 that are wanted")
    made = plan(seen, NOW + 9999)
    assert not made.write_ahead
    assert not created(made)
    assert not deleted(made)


def test_an_attempt_after_it_begins_with_all_nodes() -> None:
    seen = shrunk(3)
    small = replace(seen.job, spec=seen.job.spec.model_copy(update={"nodes": 3}))
    lost = ended(small, 2, 2, code=143, disruption="EvictionByEvictionAPI: drained")
    after = reconciled(replace(seen, pods=(*seen.pods[:2], lost)), NOW + WAIT + 20)
    status = after.job.status
    assert (status.attempt, status.replicas, status.shrunk_from) == (3, None, None)
    assert len(created(plan(replace(after, pods=()), NOW + WAIT + 400))) == 4


@pytest.mark.parametrize(
    ("change", "resized"),
    [
        ({"nodes": 5}, True),
        ({"nodes": 2}, True),
        ({"nodes": 3}, False),  # it runs on 3 already
        ({"min_nodes": 3}, False),
        ({"min_nodes": 4}, True),
        ({"min_nodes": None}, True),
    ],
    ids=str,
)
def test_an_edit_of_the_sizes_restarts_it_if_it_may_not_run_on_so_many(change: dict[str, int], resized: bool) -> None:
    status = plan(edited(shrunk(3), **change), NOW + WAIT + 20).status
    assert (status.attempt == 3) == resized


def test_a_number_that_was_lowered_to_its_size_and_raised_again_is_a_wish_for_more() -> None:
    lowered = reconciled(edited(shrunk(3), nodes=3), NOW + WAIT + 20)
    assert (lowered.job.status.attempt, lowered.job.status.shrunk_from) == (2, None)
    assert plan(edited(lowered, nodes=4), NOW + WAIT + 30).status.attempt == 3


BEGAN = NOW + WAIT + 10
#: From then on the job on 3 of 4 or 5 nodes asks for the others.
ASKS = BEGAN + 3600


def growing(nodes: int = 4, **more: Any) -> Observed:
    """The job on fewer nodes, which asks for the others after an hour."""
    of = job(nodes=nodes, minNodes=2, deadlines={"fullSizeSeconds": int(WAIT), "fewerNodesSeconds": 3600}, **more)
    after = reconciled(placed(3, of), NOW + WAIT)
    small = replace(after.job, spec=after.job.spec.model_copy(update={"nodes": 3}))
    return reconciled(replace(after, pods=tuple(pod(small, rank, 2) for rank in range(3))), BEGAN)


def placeholder(seen: Observed, rank: int, *, at: float | None = None, **changes: Any) -> Pod:
    """The pod that waits for the node of a missing rank, with its place since then."""
    place = {"node": f"node-{rank}", "placed": at} if at is not None else {"node": None, "phase": "Pending"}
    name = f"job-{seen.job.status.attempt}-{rank}-place"
    more = {"name": name, "uid": name, "is_placeholder": True, **place, **changes}
    return pod(replace(seen.job, spec=seen.job.spec_of_attempt), rank, seen.job.status.attempt, **more)


def finished(type_: str) -> Condition:
    return Condition(type=type_, status="True", reason="x", last_transition_time=rfc3339(ASKS))


def with_places(seen: Observed, *pods: Pod) -> Observed:
    """The same with these pods next to the ranks."""
    return replace(seen, pods=(*(one for one in seen.pods if not one.is_placeholder), *pods))


def test_pods_without_a_program_wait_for_the_missing_nodes_once_it_has_run_on_fewer_for_long_enough() -> None:
    seen = growing(5)
    before = plan(seen, ASKS - 1)
    assert (created(before), before.wake_at) == ([], ASKS)
    made = plan(seen, ASKS)
    assert (made.status.attempt, created(made)) == (2, ["job-2-3-place", "job-2-4-place"])
    assert "0 of 2 pods that wait for the missing nodes have one" in (made.status.message or "")
    bodies = [action.body for action in made.actions if isinstance(action, CreatePod)]
    assert {container["command"][0] for body in bodies for container in body["spec"]["containers"]} == {"sleep"}
    assert not any("env" in container for body in bodies for container in body["spec"]["containers"])
    there = with_places(seen, placeholder(seen, 3), placeholder(seen, 4))
    assert created(plan(reconciled(there, ASKS), ASKS + 1)) == [], "nothing more is asked for"


def test_a_job_without_fewer_nodes_seconds_asks_for_no_place() -> None:
    assert created(plan(shrunk(3), NOW + 99999)) == []


def test_nothing_stops_while_there_is_no_place() -> None:
    seen = with_places(growing(), placeholder(growing(), 3, waiting=NO_NODE))
    made = plan(reconciled(seen, ASKS), ASKS + 99999)
    assert (made.status.attempt, made.status.phase, deleted(made)) == (2, Phase.RUNNING, {})


def test_it_continues_on_all_nodes_once_places_for_them_have_been_held_for_a_while() -> None:
    seen = growing(5)
    there = with_places(seen, placeholder(seen, 3, at=ASKS + 10), placeholder(seen, 4, at=ASKS + 50))
    before = plan(there, ASKS + 50 + HELD_SECONDS - 1)
    assert (before.status.attempt, before.wake_at) == (2, ASKS + 50 + HELD_SECONDS)
    status = plan(there, ASKS + 50 + HELD_SECONDS).status
    assert (status.attempt, status.reason, status.replicas, status.shrunk_from) == (3, Reason.RESIZED, None, None)
    assert status.restarts.counted == status.restarts.infrastructure == 0


def test_it_continues_on_some_more_nodes_after_the_time_that_a_gang_waits_for_all() -> None:
    seen = growing(5)
    there = with_places(seen, placeholder(seen, 3, waiting=NO_NODE), placeholder(seen, 4, at=ASKS + 10))
    before = plan(there, ASKS + 10 + WAIT - 1)
    assert (before.status.attempt, before.wake_at) == (2, ASKS + 10 + WAIT)
    after = reconciled(there, ASKS + 10 + WAIT)
    assert (after.job.status.attempt, after.job.status.replicas, after.job.status.shrunk_from) == (3, 4, 5)


@pytest.mark.parametrize("gone", [{"deletion_deadline": NOW}, {"phase": "Failed"}], ids=str)
def test_a_place_that_is_lost_again_does_not_count(gone: dict[str, Any]) -> None:
    seen = growing()
    there = with_places(seen, placeholder(seen, 3, at=ASKS + 10, **gone))
    assert plan(there, ASKS + 60).status.attempt == 2


def test_a_pod_that_a_node_refused_is_replaced_after_a_wait() -> None:
    seen = growing()
    there = reconciled(with_places(seen, placeholder(seen, 3, at=ASKS + 10, phase="Failed", all_ended=True)), ASKS + 20)
    before = plan(there, ASKS + 10 + WAIT - 1)
    assert (deleted(before), before.wake_at) == ({}, ASKS + 10 + WAIT)
    assert list(deleted(plan(there, ASKS + 10 + WAIT))) == ["job-2-3-place"]


@pytest.mark.parametrize("what", ["it runs", "suspended", "finished"])
def test_a_pod_that_a_lost_node_keeps_is_removed_so_that_another_one_can_ask(what: str) -> None:
    """The object would stay until somebody removes the node, and the job on fewer nodes."""
    seen = growing()
    lost = placeholder(seen, 3, at=ASKS + 10, deletion_deadline=ASKS + 60)
    there = reconciled(with_places(seen, lost), ASKS + 60)
    if what == "suspended":
        there = reconciled(edited(there, suspend=True), ASKS + 60)
    elif what == "finished":
        there = updated(there, conditions=[finished("Failed")])
    at = ASKS + 10 + WAIT
    made = plan(there, at)
    assert [lookup for lookup in made.lookups if isinstance(lookup, ReadNode)] == [ReadNode(name="node-3")]
    assert "job-2-3-place" not in deleted(made), "its node may respond"
    gone = replace(there, nodes_gone=frozenset({"node-3"}))
    assert deleted(plan(gone, at))["job-2-3-place"] == 0


def test_places_are_held_while_the_ranks_stop_and_given_to_the_new_ones() -> None:
    seen = growing()
    after = reconciled(with_places(seen, placeholder(seen, 3, at=ASKS)), ASKS + HELD_SECONDS)
    stops = plan(after, ASKS + HELD_SECONDS + 1)
    assert list(deleted(stops)) == ["job-2-0", "job-2-1", "job-2-2"]
    begins = plan(replace(after, pods=after.pods[3:]), ASKS + HELD_SECONDS + 5)
    assert list(deleted(begins)) == ["job-2-3-place"]
    assert created(begins) == ["job-3-0", "job-3-1", "job-3-2", "job-3-3"]


def test_places_are_given_up_where_a_rank_does_not_stop() -> None:
    seen = growing()
    after = reconciled(with_places(seen, placeholder(seen, 3, at=ASKS)), ASKS + HELD_SECONDS)
    stuck = tuple(changed(one, deletion_deadline=ASKS + 60) for one in after.pods[:3])
    waits = replace(after, pods=(*stuck, after.pods[3]))
    assert deleted(plan(waits, ASKS + 119)) == {}
    assert list(deleted(plan(waits, ASKS + 121))) == ["job-2-3-place"]


@pytest.mark.parametrize(
    "what", ["suspended", "finished", "scaled to its size", "a rank is lost", "a rank has succeeded"]
)
def test_no_place_is_held_for_a_job_that_cannot_use_it(what: str) -> None:
    seen = growing()
    there = with_places(seen, placeholder(seen, 3, at=ASKS))
    small = replace(there.job, spec=there.job.spec_of_attempt)
    match what:
        case "suspended":
            there = reconciled(edited(there, suspend=True), ASKS)
        case "finished":
            ranks = [ended(small, rank, 2, ended_seen=ASKS) for rank in range(3)]
            there = reconciled(replace(there, pods=(*ranks, there.pods[3]), logs={ranks[0].uid: NO_LOG}), ASKS)
            assert there.job.status.phase == Phase.SUCCEEDED
        case "scaled to its size":
            there = reconciled(edited(there, nodes=3), ASKS)
        case "a rank is lost":
            lost = ended(small, 0, 2, code=1, message=ECHO)
            there = reconciled(replace(there, pods=(lost, *there.pods[1:])), ASKS)
            assert there.job.status.attempt == 3
        case "a rank has succeeded":
            there = replace(there, pods=(ended(small, 0, 2, ended_seen=ASKS), *there.pods[1:]))
    assert "job-2-3-place" in deleted(plan(there, ASKS + 1))


def test_a_lost_pod_is_replaced_where_a_place_was_held() -> None:
    seen = growing(restart={"inPlace": True})
    ranks = tuple(supervised(replace(seen.job, spec=seen.job.spec_of_attempt), rank) for rank in range(3))
    lost = changed(ranks[2], running=False, disruption="DeletionByTaintManager: lost", deletion_deadline=NOW - 60)
    there = replace(with_places(seen, placeholder(seen, 3, at=ASKS)), nodes_gone=frozenset({"node-2"}))
    there = replace(there, pods=(*ranks[:2], lost, there.pods[3]))
    after = reconciled(there, ASKS)
    assert (after.job.status.attempt, len(after.job.status.replaced_pods)) == (2, 1)
    made = plan(after, ASKS + 1)
    assert "job-2-3-place" in deleted(made)
    assert created(made) == ["job-2-2-r1"]


@pytest.mark.parametrize(("gang", "asked"), [("auto", []), ("none", ["job-2-3-place"])])
def test_it_keeps_its_nodes_where_the_next_attempt_could_not_have_fewer_again(gang: str, asked: list[str]) -> None:
    """An administrator has installed a queue meanwhile that admits all pods or none."""
    seen = growing()
    scheduling = seen.job.spec.scheduling.model_copy(update={"gang": GangMode(gang)})
    limited = edited(seen, scheduling=scheduling)
    small = limited.job.spec_of_attempt
    pods = tuple(replace(one, spec_hash=spec_hash(small)) for one in limited.pods)
    assert created(plan(replace(limited, pods=pods), ASKS, KUEUE)) == asked


def test_resuming_begins_with_all_nodes() -> None:
    seen = reconciled(edited(shrunk(3), suspend=True), NOW + WAIT + 20)
    resumed = edited(reconciled(replace(seen, pods=()), NOW + WAIT + 30), suspend=False)
    assert len(created(plan(resumed, NOW + WAIT + 40))) == 4


def test_the_pods_that_wait_for_a_replaced_one_may_save_their_work_first() -> None:
    of = job(nodes=3, minNodes=2, restart={"inPlace": True}, deadlines={"fullSizeSeconds": int(WAIT)})
    seen = running(of)
    ranks = tuple(supervised(of, rank) for rank in range(3))
    lost = supervised(of, 2, running=False, disruption="DeletionByTaintManager: lost", deletion_deadline=NOW - 60)
    seen = reconciled(replace(seen, pods=(*ranks[:2], lost), nodes_gone=frozenset({"node-2"})))
    assert seen.job.status.replaced_pods
    unplaced = replace(supervised(seen.job, 2, running=False, waiting=NO_NODE), node=None, phase="Pending")
    waiting = reconciled(replace(seen, pods=(*ranks[:2], unplaced)))
    after = reconciled(waiting, NOW + WAIT)
    assert (after.job.status.attempt, after.job.status.replicas) == (2, 2)
    restarts = after.job.status.restarts
    assert (restarts.counted, restarts.infrastructure) == (0, 1), "the lost pod alone, which does not count"
    stopped = {name: grace for name, grace in deleted(plan(after, NOW + WAIT)).items() if "-r" not in name}
    assert set(stopped.values()) <= {None}, "their own grace"


KUEUE, NATIVE, VOLCANO, COSCHEDULING = map(
    newest, (ProviderName.KUEUE, ProviderName.NATIVE, ProviderName.VOLCANO, ProviderName.COSCHEDULING)
)
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
    """The group of a gang that runs or waits for a lost pod alone is of no importance any more."""
    seen = edited(in_a_group(provider, num_placed), min_nodes=least)
    after = plan(seen, NOW + 1, provider).status
    assert after.attempt == (2 if is_replaced else 1)
    assert (after.restarts.counted, after.restarts.infrastructure) == (0, 0)


@with_groups
@pytest.mark.parametrize("least", [2, None])
def test_another_least_number_does_not_stop_the_pods_that_wait_for_a_replaced_one(
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
    (place,) = [action.body for action in made.actions if isinstance(action, CreatePod)]
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
