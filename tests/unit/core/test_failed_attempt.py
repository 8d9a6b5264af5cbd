"""What follows from a failed attempt: a restart that counts or not, or the end of the job."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.api.names import ConditionType, Phase, Reason
from ddpjob_operator.api.status import DDPJobStatus, Progress, Restarts
from ddpjob_operator.core.actions import LowerPodDeadline, PatchObject, ReadNode
from ddpjob_operator.core.failure.restart import restarts_left
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.stopping import OVERDUE_SECONDS
from ddpjob_operator.core.times import rfc3339
from support.builders import (
    NOW,
    broken,
    crashed,
    created,
    deleted,
    edited,
    ended,
    in_attempt,
    job,
    observed,
    pod,
    program,
    reconciled,
    running,
    updated,
)

UNCOUNTED = Restarts(infrastructure=1, infrastructure_times=[rfc3339(NOW)], in_a_row=1, short_in_a_row=1)
PAIR = program(nodes=2)
SINGLE = program(nodes=1)
TRAINER = job(nodes=2)


def test_the_status_is_written_first_then_survivors_are_stopped_then_the_next_gang_is_created() -> None:
    seen = broken(PAIR, crashed(PAIR, 1))
    made = plan(seen, NOW)
    assert (made.write_ahead, made.actions) == (True, ())
    assert (made.status.attempt, made.status.phase) == (2, Phase.RESTARTING)
    assert not made.status.condition(ConditionType.CREATED)

    seen = reconciled(seen)
    assert deleted(plan(seen, NOW)) == {"job-1-0": 1}, "the failed pod is kept"

    made = plan(replace(seen, pods=(pod(PAIR, 0, deletion_deadline=NOW + 1), seen.pods[1])), NOW)
    assert created(made) == []
    assert "waiting for pod job-1-0 to stop" in made.status.message

    made = plan(replace(seen, pods=seen.pods[1:]), NOW)
    assert isinstance(made.actions[0], PatchObject)
    assert created(made) == ["job-2-0", "job-2-1"]


def test_the_kubelet_stops_the_sidecar_of_a_failed_pod_so_that_pod_and_log_are_kept() -> None:
    seen = reconciled(broken(SINGLE, crashed(SINGLE, all_ended=False)))
    assert plan(seen, NOW).actions == (LowerPodDeadline(name="job-1-0", uid="pod-uid-1-0"),)
    seen = reconciled(broken(SINGLE, crashed(SINGLE, all_ended=False, active_deadline_seconds=1)))
    assert plan(seen, NOW).wake_at == NOW - 10 + 60
    assert deleted(plan(seen, NOW + 50)) == {"job-1-0": 1}, "the kubelet did not stop it in time"


def test_a_pod_that_disappears_from_a_running_gang_was_deleted_by_somebody_and_is_not_counted() -> None:
    seen = running(PAIR)
    status = plan(replace(seen, pods=seen.pods[:1]), NOW).status
    assert (status.attempt, status.failure.reason, status.restarts) == (2, Reason.POD_DELETED, UNCOUNTED)


def test_a_pod_that_is_being_deleted_ends_the_attempt_once_its_grace_is_over() -> None:
    made = plan(broken(PAIR, pod(PAIR, 1, deletion_deadline=NOW + 20)), NOW)
    assert (made.status.attempt, made.wake_at) == (1, NOW + 20 + OVERDUE_SECONDS)
    made = plan(broken(PAIR, pod(PAIR, 1, deletion_deadline=NOW - 5)), NOW)
    assert (made.status.attempt, made.lookups) == (2, (ReadNode(name="node-1"),))


def test_a_lost_node_counts_as_stopped_and_is_looked_up_until_the_next_gang_is_whole() -> None:
    seen = reconciled(broken(PAIR, pod(PAIR, 1, deletion_deadline=NOW - 5)))
    made = plan(replace(seen, pods=seen.pods[1:], nodes_gone=frozenset({"node-1"})), NOW)
    assert created(made) == ["job-2-0", "job-2-1"]
    assert (made.status.failure.reason, made.status.restarts) == (Reason.NODE_LOST, UNCOUNTED)
    assert ReadNode(name="node-1") in made.lookups


def test_the_job_fails_when_the_restarts_are_used_up() -> None:
    of = program(nodes=2, restart={"maxRestarts": 0})
    status = plan(broken(of, crashed(of, 1)), NOW).status
    assert (status.phase, status.reason, status.attempt) == (Phase.FAILED, Reason.PROGRAM_ERROR, 1)
    assert status.message == (
        "Rank 1 (pod job-1-1, node node-1) ended with exit code 1 in attempt 1: ValueError: boom;"
        " not restarted, since restart.maxRestarts is 0"
    )


@pytest.mark.parametrize(("seconds_ago", "attempt", "phase"), [(601, 2, Phase.RESTARTING), (599, 1, Phase.FAILED)])
def test_only_restarts_within_the_window_are_counted(seconds_ago, attempt, phase) -> None:
    of = program(nodes=1, restart={"maxRestarts": 1, "windowSeconds": 600})
    earlier = Restarts(counted=1, counted_times=[rfc3339(NOW - seconds_ago)])
    status = plan(updated(broken(of, crashed(of)), restarts=earlier), NOW).status
    assert (status.attempt, status.phase) == (attempt, phase)


@pytest.mark.parametrize(("max_restarts", "attempt"), [(2, 1), (3, 2)])
def test_restarts_in_place_count_too_and_the_next_attempt_may_do_what_is_left(max_restarts, attempt) -> None:
    of = program(nodes=1, restart={"maxRestarts": max_restarts, "inPlace": True})
    seen = broken(of, crashed(of))
    status = plan(replace(seen, progress=Progress(step=7, in_place_restarts=2)), NOW).status
    assert status.attempt == attempt
    if attempt == 2:
        assert (status.restarts.counted, len(status.restarts.counted_times)) == (3, 3)
        assert (status.progress.step, status.progress.in_place_restarts) == (7, None), "they are counted once"


EVICTED: dict[str, Any] = {"disruption": "EvictionByEvictionAPI: evicting"}


@pytest.mark.parametrize(
    ("reported", "suspend", "left"),
    [
        ({"stored": 2}, False, 1),
        ({"read": 2}, False, 1),
        ({"stored": 2, "read": 0}, False, 1),  # a progress line that the program prints itself
        ({"read": 2}, True, 1),
        ({"read": 1000}, False, 0),
    ],
    ids=["in the status", "read just now", "omitted later", "before a suspension", "made up"],
)
def test_restarts_in_place_count_however_their_attempt_ends(reported, suspend, left) -> None:
    """A job that was evicted now and then had all of them again each time, so a broken program never failed."""
    of = program(nodes=1, restart={"maxRestarts": 3, "inPlace": True})
    seen = broken(of, crashed(of, **EVICTED))
    if "stored" in reported:
        seen = updated(seen, progress=Progress(step=7, in_place_restarts=reported["stored"]))
    if "read" in reported:
        seen = replace(seen, progress=Progress(step=8, in_place_restarts=reported["read"] or None))
    status = plan(edited(seen, suspend=suspend), NOW).status
    assert (status.attempt, restarts_left(of.spec, status.restarts)) == (2, left)
    assert len(status.restarts.counted_times) <= 3


def test_restarts_that_have_left_the_window_may_be_made_in_place_again() -> None:
    of = program(nodes=1, restart={"maxRestarts": 1, "windowSeconds": 600, "inPlace": True})
    earlier = Restarts(counted=1, counted_times=[rfc3339(NOW - 601)])
    status = plan(updated(broken(of, crashed(of, **EVICTED)), restarts=earlier), NOW).status
    assert restarts_left(of.spec, status.restarts) == 1


@pytest.mark.parametrize(("action", "attempt", "restarts"), [("Fail", 1, Restarts()), ("Ignore", 2, UNCOUNTED)])
def test_a_restart_rule_decides_before_anything_else(action, attempt, restarts) -> None:
    of = program(nodes=1, restart={"rules": [{"exitCodes": [9], "action": action}]})
    status = plan(broken(of, crashed(of, code=9)), NOW).status
    assert (status.attempt, status.restarts) == (attempt, restarts)


@pytest.mark.parametrize("action", ["Fail", "Restart"])
@pytest.mark.parametrize("taken_away", [EVICTED, {"deletion_requested": NOW - 9}], ids=["evicted", "deleted"])
def test_a_rule_for_an_exit_code_does_not_concern_how_a_program_answers_sigterm(action, taken_away) -> None:
    """torchrun ends with 1, and a rule that ends the job at exit code 1 ended it when a node was drained."""
    of = program(nodes=1, restart={"rules": [{"exitCodes": [1], "action": action}]})
    status = plan(broken(of, crashed(of, **taken_away)), NOW).status
    assert (status.attempt, status.restarts) == (2, UNCOUNTED)


def test_a_stop_with_a_checkpoint_is_not_counted_and_the_other_ranks_have_their_own_grace() -> None:
    seen = reconciled(broken(TRAINER, ended(TRAINER, 0, code=75, message="stopped checkpointStep=40")))
    for now in (NOW, NOW + 1):
        failure = plan(seen, now).status.failure
        assert (failure.reason, failure.checkpoint_step) == (Reason.STOPPED_WITH_CHECKPOINT, 40)
    uncounted = UNCOUNTED.model_copy(update={"in_a_row": 0, "furthest_checkpoint_step": 40})
    assert seen.job.status.restarts == uncounted
    assert deleted(plan(seen, NOW)) == {"job-1-1": None}


@pytest.mark.parametrize(
    ("cause", "reason", "grace_seconds"),
    [
        # torchrun ends with 1 whatever its workers saved
        ({"code": 1, "disruption": "EvictionByEvictionAPI: evicting"}, Reason.EVICTED, None),
        ({"code": 1, "disruption": "PreemptionByScheduler: preempting"}, Reason.PREEMPTED, None),
        ({"code": 1, "reason": "NodeShutdown"}, Reason.NODE_DRAINED, None),
        ({"code": 1, "disruption": "DeletionByTaintManager: tainted"}, Reason.POD_DISRUPTED, None),
        ({"code": 1, "deletion_deadline": NOW + 20}, Reason.POD_DELETED, None),
        ({"code": 1}, Reason.PROGRAM_ERROR, 1),
        ({"code": 137}, Reason.KILLED, 1),
        ({"code": 137, "disruption": "DeletionByPodGC: node not found"}, Reason.NODE_LOST, 1),
    ],
)
def test_survivors_of_a_disruption_have_their_own_grace_to_save_and_those_of_a_failure_have_not(
    cause, reason, grace_seconds
) -> None:
    seen = reconciled(broken(PAIR, ended(PAIR, 1, **cause)))
    assert seen.job.status.failure.reason == reason
    assert deleted(plan(seen, NOW)) == {"job-1-0": grace_seconds}


def test_a_stop_without_a_newer_checkpoint_is_counted() -> None:
    of = job(nodes=1)
    first = reconciled(broken(of, ended(of, 0, code=75, message="stopped checkpointStep=40"))).job
    again = observed(first, ended(of, 0, 2, code=75, message="stopped checkpointStep=40"))
    assert plan(again, NOW).status.restarts.counted == 1


def test_a_stop_of_another_rank_waits_for_the_step_that_rank_0_saved() -> None:
    of = job(nodes=2, restart={"maxRestarts": 0})
    early = ended(of, 1, code=75, ended_seen=NOW)
    assert not plan(broken(of, early), NOW).status.finished
    saved = ended(of, 0, code=75, message="checkpointStep=40")
    both = broken(of, early, saved)
    assert plan(both, NOW).status.failure.reason == Reason.STOPPED_WITH_CHECKPOINT
    gone = replace(both, pods=(early,), vanished=(saved,))
    assert plan(gone, NOW).status.failure.reason == Reason.STOPPED_WITH_CHECKPOINT


def pod_deleted_again(restarts: Restarts, **status: Any) -> DDPJobStatus:
    """The status after somebody deleted a pod of a gang with these counters."""
    seen = updated(running(PAIR), restarts=restarts, **status)
    return plan(replace(seen, pods=seen.pods[:1]), NOW).status


def test_uncounted_restarts_without_progress_are_bounded_too() -> None:
    worn = Restarts(infrastructure=100, infrastructure_times=[rfc3339(NOW - 600 * n) for n in range(100, 0, -1)])
    status = pod_deleted_again(worn)
    assert (status.phase, status.reason) == (Phase.FAILED, Reason.TOO_MANY_INFRASTRUCTURE_RESTARTS)
    assert "100 times within 1d0h" in status.message


@pytest.mark.parametrize(
    ("minutes_apart", "status", "num_remembered"),
    [
        (60, {}, 24),  # only those of the last day count
        (10, {"progress": Progress(step=5)}, 1),  # progress begins the count again
        (10, {"progress": Progress(step=4, checkpoint_step=3)}, 1),
    ],
)
def test_a_job_may_be_interrupted_for_months(minutes_apart, status, num_remembered) -> None:
    """A spot job that saved its work in each of a hundred attempts was ended at the next interruption."""
    times = [rfc3339(NOW - 60 * minutes_apart * n) for n in range(100, 0, -1)]
    worn = Restarts(infrastructure=100, infrastructure_times=times, furthest_step=4, furthest_checkpoint_step=2)
    after = pod_deleted_again(worn, running_since=rfc3339(NOW - 20), **status)
    assert (after.attempt, after.restarts.infrastructure) == (2, 101)
    assert len(after.restarts.infrastructure_times) == num_remembered


@pytest.mark.parametrize(
    ("keep_attempts", "attempt", "old", "expected"),
    [
        (1, 3, [(1, 1), (1, 2)], {"job-1-0": 1}),  # failed pods of the newest attempts are kept
        (0, 7, [(None, 3)], {"job-3-0": 1}),  # a pod of an earlier attempt that still runs is deleted, once
        (2, 2, [(None, 1)], {"job-1-0": 1}),
    ],
)
def test_pods_of_earlier_attempts_are_deleted_unless_they_are_kept_as_evidence(
    keep_attempts, attempt, old, expected
) -> None:
    of = in_attempt(program(nodes=1, restart={"keepAttempts": keep_attempts}), attempt)
    pods = [ended(of, 0, of_attempt, code=1) if code else pod(of, 0, of_attempt) for code, of_attempt in old]
    made = plan(observed(of, *pods, pod(of, 0, attempt)), NOW)
    assert deleted(made) == expected
    assert len(made.actions) == len(expected)


def test_a_pod_of_a_later_attempt_belongs_to_another_operator_and_is_left_alone() -> None:
    assert deleted(plan(observed(SINGLE, pod(SINGLE, 0, 1), pod(SINGLE, 0, 2)), NOW)) == {}


def test_evidence_that_is_not_kept_is_deleted_before_the_new_pods_are_created() -> None:
    of = in_attempt(program(nodes=1, restart={"keepAttempts": 0}), 2)
    actions = plan(observed(of, ended(of, 0, 1, code=1)), NOW).actions
    assert [type(action).__name__ for action in actions] == ["DeletePod", "CreatePod"]


def test_a_pod_left_on_a_lost_node_does_not_change_the_status_of_the_new_gang() -> None:
    """Found on real nodes: the status flapped as long as the pod existed, and each flap was a write."""
    of = replace(PAIR, status=running(PAIR).job.status.model_copy(update={"attempt": 2}))
    seen = reconciled(observed(of, pod(of, 1, 1, deletion_deadline=NOW - 60), pod(of, 0, 2), pod(of, 1, 2)))
    status = seen.job.status
    assert status.phase == Phase.RUNNING
    made = plan(seen, NOW + 5)
    assert (made.status, made.actions, made.lookups) == (status, (), ())
    made = plan(replace(seen, nodes_gone=frozenset({"node-1"})), NOW + 5)
    assert (made.status, deleted(made), made.lookups) == (status, {"job-1-1": 0}, ())


def test_two_lost_nodes_are_both_looked_up_while_either_delays_the_new_gang() -> None:
    """An answer counts only while its lookup is wanted: looking up one node at a time never finds both lost."""
    of = program(nodes=3)
    seen = reconciled(broken(of, *(pod(of, rank, deletion_deadline=NOW - 5) for rank in (1, 2))))
    one_known = replace(seen, nodes_gone=frozenset({"node-1"}))
    assert set(plan(one_known, NOW).lookups) == {ReadNode(name="node-1"), ReadNode(name="node-2")}


def test_a_replaced_gang_has_its_own_grace_and_the_message_names_no_older_failure() -> None:
    status = plan(broken(SINGLE, crashed(SINGLE)), NOW).status
    third = replace(SINGLE, status=status.model_copy(update={"attempt": 3}))  # attempt 2 was replaced, not failed
    made = plan(observed(third, pod(SINGLE, 0, 2)), NOW)
    assert deleted(made) == {"job-2-0": None}
    assert "boom" not in made.status.message


def test_a_deleted_pod_that_never_had_a_node_has_stopped() -> None:
    second = in_attempt(SINGLE, 2)
    held = pod(second, 0, 1, node=None, running=False, deletion_deadline=NOW - 5)
    assert created(plan(observed(second, held), NOW)) == ["job-2-0"]


def test_a_pod_with_time_left_to_save_is_not_taken_for_lost() -> None:
    """A node that was not Ready for a moment once cost its pods the rest of their grace."""
    leaving = pod(PAIR, 1, deletion_deadline=NOW + 599, disruption="DeletionByTaintManager: not ready")
    made = plan(reconciled(replace(broken(PAIR, crashed(PAIR), leaving), nodes_gone=frozenset({"node-1"}))), NOW)
    assert (created(made), deleted(made)) == ([], {})


def test_a_pod_without_a_hash_does_not_count_as_an_edit_of_the_job() -> None:
    assert plan(replace(running(SINGLE), pods=(pod(SINGLE, 0, spec_hash=""),)), NOW).status.attempt == 1
