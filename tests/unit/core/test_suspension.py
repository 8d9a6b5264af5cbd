"""spec.suspend: pods stop, and the job continues later."""

from dataclasses import replace

from ddpjob_operator.api.names import ConditionType, Phase, Reason
from ddpjob_operator.core.actions import DeletePods, LowerPodDeadline
from ddpjob_operator.core.model import NO_LOG
from ddpjob_operator.core.plan import plan
from support.builders import NOW, created, deleted, edited, ended, job, observed, pod, reconciled, running


def test_a_job_that_is_suspended_when_it_is_created_creates_nothing() -> None:
    made = plan(observed(job(suspend=True), service=None), NOW)
    assert (made.actions, made.status.phase, made.status.attempt) == ((), Phase.SUSPENDED, 1)


def test_suspending_writes_the_next_attempt_then_stops_the_pods_with_their_own_grace() -> None:
    seen = edited(running(job(nodes=2)), suspend=True)
    ahead = plan(seen, NOW)
    assert (ahead.write_ahead, ahead.status.attempt, ahead.status.phase) == (True, 2, Phase.SUSPENDED)
    made = plan(reconciled(seen), NOW)
    assert (made.actions, made.status.restarts.counted) == ((DeletePods(attempt=1),), 0)


def test_suspending_keeps_failed_pods_as_evidence() -> None:
    seen = reconciled(edited(running(job(nodes=3)), suspend=True))
    some = replace(seen, pods=(ended(seen.job, 0, code=1), *seen.pods[1:]))
    assert deleted(plan(some, NOW)) == {"job-1-1": None, "job-1-2": None}
    with_sidecar = replace(seen, pods=(ended(seen.job, 0, code=1, all_ended=False), *seen.pods[1:]))
    made = plan(with_sidecar, NOW)
    assert deleted(made) == {"job-1-1": None, "job-1-2": None}, (
        "not in one request, which would take the failed pod along"
    )
    assert LowerPodDeadline(name="job-1-0", uid="pod-uid-1-0") in made.actions


def test_resuming_starts_the_next_attempt() -> None:
    seen = reconciled(edited(running(job(nodes=2)), suspend=True))
    stopped = reconciled(replace(seen, pods=()))
    assert stopped.job.status.condition(ConditionType.SUSPENDED)
    made = plan(edited(stopped, suspend=False), NOW)
    assert created(made) == ["job-2-0", "job-2-1"]
    assert not made.status.condition(ConditionType.SUSPENDED)


def test_a_job_whose_ranks_are_all_done_succeeds_even_if_it_is_suspended() -> None:
    of = job(nodes=1)
    seen = edited(replace(running(of), pods=(ended(of, 0),), logs={"pod-uid-1-0": NO_LOG}), suspend=True)
    assert plan(seen, NOW).status.phase == Phase.SUCCEEDED


def test_an_edit_of_the_shape_replaces_the_gang_which_is_not_counted() -> None:
    """Such edits need a suspension, which can be over before the operator reconciles."""
    of = job(nodes=3)
    done = replace(running(of), pods=tuple(ended(of, rank) for rank in range(3)), logs={"pod-uid-1-0": NO_LOG})
    for seen in (edited(running(job(nodes=1)), master_port=30000), edited(done, master_port=30000)):
        status = plan(seen, NOW).status
        assert (status.attempt, status.reason, status.restarts.counted) == (2, Reason.SPEC_CHANGED, 0)


def test_the_message_of_a_suspended_job_does_not_change_while_its_pods_stop() -> None:
    seen = reconciled(edited(running(job(nodes=1)), suspend=True))
    overdue = replace(seen, pods=(pod(seen.job, 0, 1, deletion_deadline=NOW - 9),), nodes_gone=frozenset({"node-0"}))
    assert plan(overdue, NOW).lookups
    assert plan(overdue, NOW).status.message == "spec.suspend is true"
