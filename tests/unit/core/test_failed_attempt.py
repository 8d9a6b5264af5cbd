from dataclasses import replace
from typing import Any

import pytest

from builders import (
    NOW,
    TRACEBACK,
    broken,
    created,
    deleted,
    ended,
    job,
    observed,
    pod,
    program,
    running,
    with_status,
)
from ddpjob_operator.api.names import ConditionType, Phase, Reason
from ddpjob_operator.api.status import DDPJobStatus, Progress, Restarts
from ddpjob_operator.core.model import LowerPodDeadline, PatchService, ReadNode
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.stopping import OVERDUE_SECONDS
from ddpjob_operator.core.times import rfc3339


def test_the_next_attempt_is_written_before_anything_is_done() -> None:
    of = program(nodes=2)
    made = plan(broken(of, ended(of, 1, code=1, message=TRACEBACK)), NOW)

    assert (made.write_ahead, made.actions) == (True, ())
    assert (made.status.attempt, made.status.phase) == (2, Phase.RESTARTING)
    assert not made.status.condition(ConditionType.CREATED)


def test_then_survivors_are_deleted_and_the_failed_pod_is_kept() -> None:
    of = program(nodes=2)
    seen = broken(of, ended(of, 1, code=1, message=TRACEBACK))
    seen = with_status(seen, plan(seen, NOW).status)

    assert deleted(plan(seen, NOW)) == {"job-1-0": 1}


def test_nothing_starts_while_an_old_pod_may_run() -> None:
    of = program(nodes=2)
    seen = broken(of, ended(of, 1, code=1, message=TRACEBACK), pod(of, 0, deletion_deadline=NOW + 1))
    seen = with_status(seen, plan(seen, NOW).status)

    made = plan(seen, NOW)
    assert created(made) == []
    assert "waiting for pod job-1-0 to stop" in (made.status.message or "")


def test_when_all_have_stopped_the_service_moves_on_and_the_new_gang_is_created() -> None:
    of = program(nodes=2)
    seen = broken(of, ended(of, 1, code=1, message=TRACEBACK))
    seen = with_status(seen, plan(seen, NOW).status)
    stopped = replace(seen, pods=seen.pods[1:])

    made = plan(stopped, NOW)
    assert isinstance(made.actions[0], PatchService)
    assert created(made) == ["job-2-0", "job-2-1"]


def test_a_living_sidecar_of_a_failed_pod_is_ended_with_pod_and_log_kept() -> None:
    of = program(nodes=1)
    seen = broken(of, ended(of, 0, code=1, message=TRACEBACK, all_ended=False))
    seen = with_status(seen, plan(seen, NOW).status)

    assert plan(seen, NOW).actions == (LowerPodDeadline(name="job-1-0", uid="pod-uid-1-0"),)


def test_a_pod_that_vanished_after_all_existed_was_deleted_by_somebody() -> None:
    seen = running(program(nodes=2))
    made = plan(replace(seen, pods=seen.pods[:1]), NOW)

    assert (made.status.attempt, made.status.failure.reason) == (2, Reason.POD_DELETED)
    assert made.status.restarts == Restarts(
        infrastructure=1, infrastructure_times=[rfc3339(NOW)], in_a_row=1, short_in_a_row=1
    )


def test_a_pod_that_is_only_being_deleted_still_saves_its_work() -> None:
    of = program(nodes=2)
    seen = broken(of, pod(of, 1, deletion_deadline=NOW + 20))

    made = plan(seen, NOW)
    assert (made.status.attempt, made.wake_at) == (1, NOW + 20 + OVERDUE_SECONDS)


def test_a_pod_that_outlives_its_grace_has_ended_the_attempt_and_its_node_is_asked_for() -> None:
    of = program(nodes=2)
    seen = broken(of, pod(of, 1, deletion_deadline=NOW - 5))

    made = plan(seen, NOW)
    assert made.status.attempt == 2
    assert made.lookups == (ReadNode(name="node-1"),)


def test_a_lost_node_counts_as_stopped_and_is_named() -> None:
    of = program(nodes=2)
    seen = broken(of, pod(of, 1, deletion_deadline=NOW - 5))
    seen = with_status(seen, plan(seen, NOW).status)
    lost = replace(seen, pods=seen.pods[1:], nodes_gone=frozenset({"node-1"}))

    made = plan(lost, NOW)
    assert created(made) == ["job-2-0", "job-2-1"]
    assert made.status.failure.reason == Reason.NODE_LOST
    assert made.status.restarts == Restarts(
        infrastructure=1, infrastructure_times=[rfc3339(NOW)], in_a_row=1, short_in_a_row=1
    )


def test_a_program_error_counts() -> None:
    of = program(nodes=1)
    status = plan(broken(of, ended(of, 0, code=1, message=TRACEBACK)), NOW).status

    assert status.restarts == Restarts(counted=1, counted_times=[rfc3339(NOW)], in_a_row=1, short_in_a_row=1)


def test_the_job_fails_when_the_restarts_are_used_up() -> None:
    of = program(nodes=2, restart={"maxRestarts": 0})
    status = plan(broken(of, ended(of, 1, code=1, message=TRACEBACK)), NOW).status

    assert (status.phase, status.reason, status.attempt) == (Phase.FAILED, Reason.PROGRAM_ERROR, 1)
    assert status.message == (
        "Rank 1 (pod job-1-1, node node-1) ended with exit code 1 in attempt 1: ValueError: boom;"
        " not restarted, since restart.maxRestarts is 0"
    )


def test_restarts_before_the_window_do_not_count() -> None:
    of = program(nodes=1, restart={"maxRestarts": 1, "windowSeconds": 600})
    seen = broken(of, ended(of, 0, code=1, message=TRACEBACK))
    old = with_status(
        seen,
        seen.job.status.model_copy(update={"restarts": Restarts(counted=1, counted_times=[rfc3339(NOW - 601)])}),
    )
    recent = with_status(
        seen,
        seen.job.status.model_copy(update={"restarts": Restarts(counted=1, counted_times=[rfc3339(NOW - 599)])}),
    )

    assert plan(old, NOW).status.attempt == 2
    assert plan(recent, NOW).status.phase == Phase.FAILED


@pytest.mark.parametrize(
    ("action", "attempt", "restarts"),
    [
        ("Fail", 1, Restarts()),
        ("Ignore", 2, Restarts(infrastructure=1, infrastructure_times=[rfc3339(NOW)], in_a_row=1, short_in_a_row=1)),
    ],
)
def test_restart_rules_come_first(action, attempt, restarts) -> None:
    of = program(nodes=1, restart={"rules": [{"exitCodes": [9], "action": action}]})
    status = plan(broken(of, ended(of, 0, code=9, message=TRACEBACK)), NOW).status

    assert (status.attempt, status.restarts) == (attempt, restarts)


def test_a_stop_with_a_checkpoint_does_not_count_and_gives_the_others_their_own_grace() -> None:
    of = job(nodes=2)
    seen = broken(of, ended(of, 0, code=75, message="stopped checkpointStep=40"))
    made = plan(seen, NOW)
    assert (made.status.failure.reason, made.status.failure.checkpoint_step) == (Reason.STOPPED_WITH_CHECKPOINT, 40)
    restarts = Restarts(
        infrastructure=1, infrastructure_times=[rfc3339(NOW)], short_in_a_row=1, furthest_checkpoint_step=40
    )
    assert made.status.restarts == restarts

    assert deleted(plan(with_status(seen, made.status), NOW)) == {"job-1-1": None}


def test_a_stop_that_saved_nothing_new_counts() -> None:
    of = job(nodes=1)
    seen = broken(of, ended(of, 0, code=75, message="stopped checkpointStep=40"))
    first = plan(seen, NOW).status
    again = observed(of, ended(of, 0, 2, code=75, message="stopped checkpointStep=40"))

    status = plan(with_status(again, first), NOW).status
    assert status.restarts.counted == 1


def pod_deleted_again(restarts: Restarts, **status: Any) -> DDPJobStatus:
    """The status after somebody deleted a pod of a gang with these counters."""
    seen = running(program(nodes=2))
    worn = seen.job.status.model_copy(update={"restarts": restarts, **status})
    return plan(replace(with_status(seen, worn), pods=seen.pods[:1]), NOW).status


def test_uncounted_restarts_without_progress_are_bounded_too() -> None:
    worn = Restarts(infrastructure=100, infrastructure_times=[rfc3339(NOW - 600 * n) for n in range(100, 0, -1)])
    status = pod_deleted_again(worn)
    assert (status.phase, status.reason) == (Phase.FAILED, Reason.TOO_MANY_INFRASTRUCTURE_RESTARTS)
    assert "100 times within 1d0h" in (status.message or "")


@pytest.mark.parametrize(
    ("minutes_apart", "status", "num_remembered"),
    [
        (60, {}, 24),  # only those of the last day count
        (10, {"progress": Progress(step=5)}, 1),  # progress begins the count again
        (10, {"progress": Progress(step=4, checkpoint_step=3)}, 1),
    ],
)
def test_a_job_that_is_interrupted_for_months_goes_on(minutes_apart, status, num_remembered) -> None:
    """A spot job that saved its work in each of a hundred attempts was ended at the next interruption."""
    times = [rfc3339(NOW - 60 * minutes_apart * n) for n in range(100, 0, -1)]
    worn = Restarts(infrastructure=100, infrastructure_times=times, furthest_step=4, furthest_checkpoint_step=2)
    after = pod_deleted_again(worn, running_since=rfc3339(NOW - 20), **status)

    assert (after.attempt, after.restarts.infrastructure) == (2, 101)
    assert len(after.restarts.infrastructure_times) == num_remembered


def test_a_bad_configuration_is_not_tried_again() -> None:
    of = job(nodes=1)
    status = plan(broken(of, ended(of, 0, code=2, message="config: data folder /data is empty")), NOW).status

    assert (status.phase, status.reason) == (Phase.FAILED, Reason.BAD_CONFIG)
    assert "/data is empty" in (status.message or "")


def test_evidence_of_attempts_that_are_not_kept_goes() -> None:
    of = program(nodes=1, restart={"keepAttempts": 1})
    third = replace(of, status=of.status.model_copy(update={"attempt": 3}))
    seen = observed(third, ended(of, 0, 1, code=1), ended(of, 0, 2, code=1), pod(of, 0, 3))

    assert deleted(plan(seen, NOW)) == {"job-1-0": 1}


def test_a_stale_attempt_of_another_writer_is_none_of_our_business() -> None:
    of = program(nodes=1)
    seen = observed(of, pod(of, 0, 1), pod(of, 0, 2))

    assert deleted(plan(seen, NOW)) == {}


def test_a_pod_left_on_a_lost_node_does_not_disturb_the_new_gang() -> None:
    """Found on real nodes: the status flapped as long as the pod was there, and each flap was a write."""
    of = replace(program(nodes=2), status=running(program(nodes=2)).job.status.model_copy(update={"attempt": 2}))
    lingering = pod(of, 1, 1, deletion_deadline=NOW - 60)
    seen = observed(of, lingering, pod(of, 0, 2), pod(of, 1, 2))
    first = plan(seen, NOW).status
    assert first.phase == Phase.RUNNING

    made = plan(with_status(seen, first), NOW + 5)
    assert (made.status, made.actions, made.lookups) == (first, (), ())
    made = plan(replace(with_status(seen, first), nodes_gone=frozenset({"node-1"})), NOW + 5)
    assert (made.status, deleted(made), made.lookups) == (first, {"job-1-1": 0}, ())


def test_what_is_known_of_a_lost_node_is_asked_for_until_the_new_gang_is_whole() -> None:
    of = program(nodes=2)
    seen = broken(of, pod(of, 1, deletion_deadline=NOW - 5))
    seen = with_status(seen, plan(seen, NOW).status)
    lost = replace(seen, pods=seen.pods[1:], nodes_gone=frozenset({"node-1"}))

    assert ReadNode(name="node-1") in plan(lost, NOW).lookups


def test_a_straggler_of_an_old_attempt_is_stopped_on_sight() -> None:
    of = program(nodes=1)
    second = replace(of, status=of.status.model_copy(update={"attempt": 2}))

    assert deleted(plan(observed(second, pod(of, 0, 1), pod(of, 0, 2)), NOW)) == {"job-1-0": 1}


def test_two_lost_nodes_are_both_asked_for_while_either_holds_the_gang_back() -> None:
    """An answer counts only while its question is asked: asking for one node at a time never finds both lost."""
    of = program(nodes=3)
    seen = broken(of, pod(of, 1, deletion_deadline=NOW - 5), pod(of, 2, deletion_deadline=NOW - 5))
    seen = with_status(seen, plan(seen, NOW).status)
    one_known = replace(seen, nodes_gone=frozenset({"node-1"}))

    assert set(plan(one_known, NOW).lookups) == {ReadNode(name="node-1"), ReadNode(name="node-2")}


def test_a_stop_with_a_checkpoint_stays_one_while_its_pods_are_looked_at_again() -> None:
    of = job(nodes=2)
    seen = broken(of, ended(of, 0, code=75, message="checkpointStep=40"))
    seen = with_status(seen, plan(seen, NOW).status)

    failure = plan(seen, NOW + 1).status.failure
    assert (failure.reason, failure.checkpoint_step) == (Reason.STOPPED_WITH_CHECKPOINT, 40)


def test_a_stop_of_another_rank_waits_for_what_rank_0_says_it_saved() -> None:
    of = job(nodes=2, restart={"maxRestarts": 0})
    early = broken(of, ended(of, 1, code=75, ended_seen=NOW))
    assert not plan(early, NOW).status.finished

    both = broken(of, ended(of, 1, code=75, ended_seen=NOW), ended(of, 0, code=75, message="checkpointStep=40"))
    assert plan(both, NOW).status.failure.reason == Reason.STOPPED_WITH_CHECKPOINT


def test_a_replaced_gang_gets_its_own_grace_and_is_not_blamed_on_an_old_failure() -> None:
    of = program(nodes=1)
    old = plan(broken(of, ended(of, 0, code=1, message=TRACEBACK)), NOW).status
    second = replace(of, status=old.model_copy(update={"attempt": 3}))  # attempt 2 was replaced, not failed
    made = plan(observed(second, pod(of, 0, 2)), NOW)

    assert deleted(made) == {"job-2-0": None}
    assert "boom" not in (made.status.message or "")


def test_a_deleted_pod_that_never_had_a_node_has_stopped() -> None:
    of = program(nodes=1)
    second = replace(of, status=of.status.model_copy(update={"attempt": 2}))
    held = pod(of, 0, 1, node=None, running=False, deletion_deadline=NOW - 5)

    assert created(plan(observed(second, held), NOW)) == ["job-2-0"]


def test_evidence_that_is_not_kept_goes_before_the_new_pods_come() -> None:
    of = program(nodes=1, restart={"keepAttempts": 0})
    second = replace(of, status=of.status.model_copy(update={"attempt": 2}))
    actions = plan(observed(second, ended(of, 0, 1, code=1)), NOW).actions

    assert [type(action).__name__ for action in actions] == ["DeletePod", "CreatePod"]


def test_a_pod_that_still_has_time_to_save_is_not_taken_for_lost() -> None:
    """A node that is not Ready for a moment once cost its pods the rest of their grace."""
    of = program(nodes=2)
    leaving = pod(of, 1, deletion_deadline=NOW + 599, disruption="DeletionByTaintManager: not ready")
    seen = replace(broken(of, ended(of, 0, code=1, message=TRACEBACK), leaving), nodes_gone=frozenset({"node-1"}))
    seen = with_status(seen, plan(seen, NOW).status)
    made = plan(seen, NOW)

    assert (created(made), deleted(made)) == ([], {})


def test_a_sidecar_that_its_kubelet_does_not_end_is_deleted() -> None:
    of = program(nodes=1)
    seen = broken(of, ended(of, 0, code=1, message=TRACEBACK, all_ended=False, active_deadline_seconds=1))
    seen = with_status(seen, plan(seen, NOW).status)

    assert plan(seen, NOW).wake_at == NOW - 10 + 60
    assert deleted(plan(seen, NOW + 50)) == {"job-1-0": 1}


def test_a_pod_without_a_hash_is_no_edit() -> None:
    of = program(nodes=1)

    assert plan(replace(running(of), pods=(pod(of, 0, spec_hash=""),)), NOW).status.attempt == 1


def test_an_old_straggler_is_deleted_once() -> None:
    of = program(nodes=1, restart={"keepAttempts": 0})
    seventh = replace(of, status=of.status.model_copy(update={"attempt": 7}))
    actions = plan(observed(seventh, pod(of, 0, 3), pod(of, 0, 7)), NOW).actions

    assert [action.name for action in actions] == ["job-3-0"]
