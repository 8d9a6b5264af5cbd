"""A job on fewer nodes asks for the missing ones with pods that have no program, and continues on all."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.api.names import Phase, Reason
from ddpjob_operator.api.scheduling import GangMode
from ddpjob_operator.api.status import Condition
from ddpjob_operator.core.actions import ReadNode
from ddpjob_operator.core.model import NO_LOG, Observed, Pod
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.policies.size import HELD_SECONDS
from ddpjob_operator.core.render.pods import spec_hash
from ddpjob_operator.core.times import rfc3339
from support.builders import (
    ECHO,
    NOW,
    changed,
    created,
    deleted,
    edited,
    ended,
    pod,
    pods_created,
    reconciled,
    supervised,
    updated,
)
from support.fewer_nodes import ASKS, KUEUE, NO_NODE, WAIT, growing


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
    bodies = [action.body for action in pods_created(made)]
    assert {container["command"][0] for body in bodies for container in body["spec"]["containers"]} == {"sleep"}
    assert not any("env" in container for body in bodies for container in body["spec"]["containers"])
    there = with_places(seen, placeholder(seen, 3), placeholder(seen, 4))
    assert created(plan(reconciled(there, ASKS), ASKS + 1)) == [], "nothing more is asked for"


def test_nothing_stops_while_there_is_no_place() -> None:
    seen = with_places(growing(), placeholder(growing(), 3, waiting=NO_NODE))
    made = plan(reconciled(seen, ASKS), ASKS + 99999)
    assert (made.status.attempt, made.status.phase, deleted(made)) == (2, Phase.RUNNING, {})


def test_a_job_on_fewer_nodes_continues_on_all_once_places_for_them_have_been_held_for_a_while() -> None:
    seen = growing(5)
    there = with_places(seen, placeholder(seen, 3, at=ASKS + 10), placeholder(seen, 4, at=ASKS + 50))
    before = plan(there, ASKS + 50 + HELD_SECONDS - 1)
    assert (before.status.attempt, before.wake_at) == (2, ASKS + 50 + HELD_SECONDS)
    status = plan(there, ASKS + 50 + HELD_SECONDS).status
    assert (status.attempt, status.reason, status.replicas, status.shrunk_from) == (3, Reason.RESIZED, None, None)
    assert status.restarts.counted == status.restarts.infrastructure == 0


def test_a_job_on_fewer_nodes_continues_on_some_more_after_the_time_that_a_gang_waits_for_all() -> None:
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
def test_a_job_keeps_its_nodes_where_the_next_attempt_could_not_have_fewer_again(gang: str, asked: list[str]) -> None:
    """An administrator has installed a queue meanwhile that admits all pods or none."""
    seen = growing()
    scheduling = seen.job.spec.scheduling.model_copy(update={"gang": GangMode(gang)})
    limited = edited(seen, scheduling=scheduling)
    small = limited.job.spec_of_attempt
    pods = tuple(replace(one, spec_hash=spec_hash(small)) for one in limited.pods)
    assert created(plan(replace(limited, pods=pods), ASKS, KUEUE)) == asked
