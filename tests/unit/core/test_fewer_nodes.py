"""minNodes: a gang that does not get all its nodes in time continues on fewer."""

from dataclasses import replace

import pytest

from ddpjob_operator.api.names import Phase, Reason
from ddpjob_operator.core.model import Observed, ScaleUp, Waiting
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.policies.partial_gang import HOLD_SECONDS
from support.builders import (
    ECHO,
    NOW,
    created,
    deleted,
    edited,
    ended,
    environment,
    job,
    observed,
    pending,
    pod,
    pods_created,
    reconciled,
    running,
    supervised,
)
from support.fewer_nodes import NO_NODE, WAIT, placed, shrunk


@pytest.mark.parametrize(("num_placed", "size"), [(4, None), (3, 3), (2, 2), (1, None), (0, None)])
def test_the_next_attempt_has_as_many_nodes_as_found_one_but_no_fewer_than_the_least(
    num_placed: int, size: int | None
) -> None:
    status = plan(placed(num_placed), NOW + WAIT).status
    assert (status.replicas if status.reason == Reason.RESIZED else None) == size
    assert (status.restarts.counted, status.restarts.infrastructure, status.failure) == (0, 0, None)
    assert status.shrunk_from == (4 if size else None)


def test_a_gang_waits_for_all_nodes_as_long_as_the_job_says_and_not_for_an_autoscaler() -> None:
    seen = replace(placed(3), scale_up=ScaleUp(since=NOW, latest=NOW))
    before = plan(seen, NOW + WAIT - 1)
    assert (before.status.attempt, before.wake_at) == (1, NOW + WAIT)
    assert plan(seen, NOW + WAIT).status.attempt == 2


def test_a_gang_waits_from_the_first_node_that_it_gets() -> None:
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
    assert "3 of 4 pods had a node after deadlines.fullSizeSeconds (2m0s)" in (seen.job.status.message or "")
    assert set(deleted(plan(seen, NOW + WAIT))) == {f"job-1-{rank}" for rank in range(4)}
    made = plan(replace(seen, pods=()), NOW + WAIT + 1)
    assert created(made) == ["job-2-0", "job-2-1", "job-2-2"]
    for action in pods_created(made):
        variables = environment(action.body)
        assert (variables["WORLD_SIZE"], variables["PET_NNODES"]) == ("3", "3")


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


def test_a_gang_on_fewer_nodes_runs_and_the_status_has_both_sizes() -> None:
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
