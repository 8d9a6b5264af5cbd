"""A job whose spec.nodes changes while it runs: the next attempt has the new size, and nothing is counted."""

from dataclasses import replace

import pytest

from ddpjob_operator.api.names import ConditionType, Phase, Reason
from ddpjob_operator.core.actions import CreatePod, DeletePods
from ddpjob_operator.core.events import events_between
from ddpjob_operator.core.model import NO_LOG, Observed
from ddpjob_operator.core.plan import plan
from support.builders import (
    NOW,
    crashed,
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


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2)])
def test_the_pods_save_their_work_and_the_next_attempt_has_the_new_size(before: int, after: int) -> None:
    seen = edited(running(job(nodes=before)), nodes=after)
    ahead = plan(seen, NOW)
    assert (ahead.write_ahead, ahead.status.attempt, ahead.status.reason) == (True, 2, Reason.RESIZED)
    assert (ahead.status.restarts.counted, ahead.status.restarts.infrastructure, ahead.status.failure) == (0, 0, None)
    assert f"spec.nodes was changed from {before} to {after}" in (ahead.status.message or "")

    stopping = reconciled(seen)
    made = plan(stopping, NOW)
    one_by_one = {"job-1-0": None} if before == 1 else {}
    assert (deleted(made), created(made)) == (one_by_one, []), "with their own grace, and none is created meanwhile"
    assert (DeletePods(attempt=1) in made.actions) == (before > 1)

    stopped = replace(reconciled(stopping), pods=())
    made = plan(stopped, NOW)
    assert created(made) == [f"job-2-{rank}" for rank in range(after)]
    sizes = {_variable(action, "NNODES") for action in made.actions if isinstance(action, CreatePod)}
    assert sizes == {str(after)}
    grown = reconciled(replace(stopped, pods=tuple(pod(stopped.job, rank, 2) for rank in range(after))))
    assert (grown.job.status.ready, grown.job.status.replicas) == (f"{after}/{after}", after)
    assert not deleted(plan(grown, NOW))
    assert not created(plan(grown, NOW))


def _variable(action: CreatePod, name: str) -> str:
    (value,) = (one["value"] for one in action.body["spec"]["containers"][0]["env"] if one["name"] == name)
    return str(value)


def test_an_event_says_so() -> None:
    seen = edited(running(job(nodes=2)), nodes=3)
    (notice,) = events_between(seen.job.status, plan(seen, NOW).status)
    assert (notice.type, notice.reason) == ("Normal", Reason.RESIZED)
    assert notice.message.endswith("the next attempt continues on 3 nodes")


def test_a_gang_that_waits_for_nodes_is_replaced_as_well() -> None:
    of = job(nodes=3)
    waiting = reconciled(observed(of, *(pending(of, rank) for rank in range(3))))
    assert plan(edited(waiting, nodes=2), NOW).status.attempt == 2


def test_an_attempt_that_has_not_begun_takes_the_new_size_and_keeps_its_failure_and_its_delay() -> None:
    of = job(nodes=2)
    failed = reconciled(replace(running(of), pods=(crashed(of, 0), pod(of, 1)), logs={"pod-uid-1-0": NO_LOG}))
    delayed = updated(failed, retry_time="2099-01-01T00:00:00Z")
    status = plan(edited(delayed, nodes=3), NOW).status
    assert (status.attempt, status.retry_time) == (2, delayed.job.status.retry_time)
    assert status.failure is not None
    assert created(plan(replace(edited(failed, nodes=3), pods=()), NOW)) == ["job-2-0", "job-2-1", "job-2-2"]


def test_a_failure_that_coincides_with_a_change_of_the_size_is_recorded_and_counts() -> None:
    """Otherwise an autoscaler that changes the size again and again could hide every crash."""
    of = job(nodes=2)
    seen = edited(replace(running(of), pods=(crashed(of, 0), pod(of, 1)), logs={"pod-uid-1-0": NO_LOG}), nodes=3)
    status = plan(seen, NOW).status
    assert (status.reason, status.restarts.counted, status.attempt) == (Reason.PROGRAM_ERROR, 1, 2)
    assert created(plan(replace(with_status(seen, status), pods=()), NOW + 60)) == ["job-2-0", "job-2-1", "job-2-2"]


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_job_whose_ranks_are_done_succeeds_in_the_size_in_which_it_ran(nodes: int) -> None:
    of = job(nodes=2)
    one = edited(replace(running(of), pods=(ended(of, 0), pod(of, 1)), logs={"pod-uid-1-0": NO_LOG}), nodes=nodes)
    assert plan(one, NOW).status.attempt == 1, "the other one is about to end"
    both = replace(one, pods=(ended(of, 0), ended(of, 1)))
    status = plan(both, NOW).status
    assert (status.phase, status.attempt, status.ready) == (Phase.SUCCEEDED, 1, "2/2")


@pytest.mark.parametrize("nodes", [1, 3])
def test_pods_of_another_size_are_found_although_the_status_does_not_have_it_yet(nodes: int) -> None:
    """An operator that was killed between the creation of the pods and the write of the status, and an edit meanwhile."""
    of = job(nodes=2)
    only_last = observed(of, pod(of, 1))
    for seen in (observed(of, pod(of, 0), pod(of, 1)), only_last):
        status = plan(edited(seen, nodes=nodes), NOW).status
        assert (status.attempt, status.restarts.counted) == (2, 0)


def test_a_gang_with_a_replaced_pod_keeps_its_size_until_it_is_resized() -> None:
    of = job(nodes=2, restart={"inPlace": True})
    seen = running(of)
    ranks = tuple(supervised(of, rank) for rank in range(2))
    seen = reconciled(replace(seen, pods=(ranks[0], ended(of, 1, code=137, is_supervised=True))))
    assert seen.job.status.replicas == 2
    assert plan(edited(seen, nodes=3), NOW).status.reason == Reason.RESIZED


def test_a_suspended_job_resumes_in_the_new_size() -> None:
    seen = reconciled(edited(running(job(nodes=2)), suspend=True))
    stopped = edited(reconciled(replace(seen, pods=())), nodes=3)
    assert plan(stopped, NOW).status.condition(ConditionType.SUSPENDED)
    assert len(created(plan(edited(stopped, suspend=False), NOW))) == 3


def test_a_finished_job_is_left_alone() -> None:
    of = job(nodes=1)
    done = reconciled(replace(running(of), pods=(ended(of, 0),), logs={"pod-uid-1-0": NO_LOG}))
    seen: Observed = edited(done, nodes=2)
    assert plan(seen, NOW).status.attempt == 1
    assert plan(seen, NOW).actions == ()
