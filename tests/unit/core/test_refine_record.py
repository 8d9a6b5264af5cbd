"""A failure is recorded at once; evidence that arrives later may only improve the record."""

from dataclasses import replace

from ddpjob_operator.api.names import Reason
from ddpjob_operator.core.failure.log_parsing import end_of_log
from ddpjob_operator.core.model import NO_LOG
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.times import rfc3339
from support.builders import (
    ECHO,
    NOW,
    TRACEBACK,
    broken,
    changed,
    crashed,
    ended,
    job,
    observed,
    pod,
    program,
    reconciled,
    running,
)

STOPPED_BY_SIGTERM = 'Traceback (most recent call last):\n  File "t.py", line 1\nSignalException: got signal: 15\n'
PAIR = program(nodes=2)
SINGLE = program(nodes=1)
TRAINER = job(nodes=2)


def finished_at(of_pod, at, requested=None):
    return changed(of_pod, exit=replace(of_pod.exit, finished=at), deletion_requested=requested)


def after_an_echo():
    """Rank 0 has lost its peer; the next attempt's status is written."""
    seen = reconciled(broken(PAIR, crashed(PAIR, message=ECHO)))
    assert seen.job.status.restarts.counted == 1
    return seen


def test_an_echo_of_a_dying_node_becomes_its_loss_and_is_not_counted() -> None:
    seen = after_an_echo()
    lost = pod(PAIR, 1, deletion_deadline=NOW - 5, deletion_requested=NOW - 6)
    status = plan(replace(seen, pods=(seen.pods[0], lost), nodes_gone=frozenset({"node-1"})), NOW).status
    assert (status.failure.reason, status.failure.rank) == (Reason.NODE_LOST, 1)
    assert (status.restarts.counted, status.restarts.infrastructure) == (0, 1)
    assert (status.restarts.counted_times, status.restarts.infrastructure_times) == ([], [rfc3339(NOW)])


def test_how_a_program_answers_a_deletion_does_not_become_its_own_error() -> None:
    seen = reconciled(replace(running(PAIR), pods=running(PAIR).pods[:1]))
    deleted = crashed(PAIR, 1, message=STOPPED_BY_SIGTERM, deletion_deadline=NOW + 9)
    status = plan(replace(seen, pods=(seen.pods[0], finished_at(deleted, NOW, NOW - 1))), NOW).status
    assert (status.failure.reason, status.restarts.counted) == (Reason.POD_DELETED, 0)


def test_stacks_in_the_termination_message_do_not_make_a_deleted_pod_a_program_error() -> None:
    """Found on real nodes: the stacks in the log were taken for an exception."""
    stacks = (
        'ddpjob stacks: SIGTERM received\nthread MainThread\n  File "<frozen runpy>", line 198, in _run_module_as_main'
    )
    gone = ended(TRAINER, 1, code=75, message=stacks, deletion_deadline=NOW + 9)
    seen = reconciled(broken(TRAINER, finished_at(gone, NOW, NOW - 1)))
    assert seen.job.status.failure.reason == Reason.POD_DELETED
    saved = replace(seen, pods=(ended(TRAINER, 0, code=75, message="checkpointStep=40"), seen.pods[1]))
    failure = plan(saved, NOW + 1).status.failure
    assert (failure.reason, failure.checkpoint_step) == (Reason.POD_DELETED, 40)


def test_a_survivor_that_the_operator_deletes_is_no_cause_however_it_ends() -> None:
    seen = after_an_echo()
    for code, message in ((0, ""), (1, STOPPED_BY_SIGTERM), (75, "checkpointStep=9")):
        survivor = ended(PAIR, 1, code=code, message=message, deletion_deadline=NOW + 1)
        status = plan(replace(seen, pods=(seen.pods[0], finished_at(survivor, NOW, NOW))), NOW + 1).status
        assert (status.failure, status.restarts) == (seen.job.status.failure, seen.job.status.restarts)


def test_a_rank_that_had_succeeded_is_no_cause_when_the_kubelet_ends_its_sidecars_for_the_operator() -> None:
    seen = after_an_echo()
    done = ended(PAIR, 1, reason="DeadlineExceeded", phase="Failed", active_deadline_seconds=1)
    assert plan(replace(seen, pods=(seen.pods[0], done)), NOW + 1).status.failure == seen.job.status.failure


def test_a_survivor_that_had_ended_before_its_deletion_is_the_cause() -> None:
    seen = after_an_echo()
    cause = crashed(PAIR, 1, deletion_deadline=NOW + 1, deletion_after_exit=True)

    assert plan(replace(seen, pods=(seen.pods[0], cause)), NOW + 1).status.failure.message == "ValueError: boom"


def test_a_deletion_by_the_operator_is_known_as_such_although_other_clocks_are_behind() -> None:
    """Found by simulation: a clock two seconds off made survivors that the operator had deleted the cause."""
    seen = after_an_echo()
    for finished, requested, deadline in (
        (NOW - 2, NOW - 2, NOW - 1),  # the clock of the API server is behind
        (NOW - 5, NOW, NOW + 1),  # that of the node
    ):
        survivor = crashed(PAIR, 1, message=STOPPED_BY_SIGTERM, deletion_deadline=deadline, deletion_seen=NOW)
        pods = (seen.pods[0], finished_at(survivor, finished, requested))
        status = plan(replace(seen, pods=pods), NOW + 1).status
        assert (status.failure.rank, status.restarts.counted) == (0, 1)


def test_of_a_record_that_another_operator_made_the_order_of_its_deletions_is_not_known() -> None:
    """Found by simulation: its clock was ahead, so its own deletion seemed to be somebody else's, of before the failure."""
    seen = after_an_echo()
    survivor = crashed(PAIR, 1, message=STOPPED_BY_SIGTERM, deletion_deadline=NOW - 30, deletion_seen=NOW - 40)
    pods = (seen.pods[0], finished_at(survivor, NOW - 39, NOW))
    for begun_attempt, reason in (
        (2, Reason.POD_DELETED),
        (1, Reason.COLLECTIVE_ERROR),
        (None, Reason.COLLECTIVE_ERROR),
    ):
        assert plan(replace(seen, pods=pods, begun_attempt=begun_attempt), NOW + 1).status.failure.reason == reason


def test_an_error_becomes_a_stop_with_a_checkpoint_once_rank_0_has_saved() -> None:
    seen = reconciled(broken(TRAINER, ended(TRAINER, 1, code=75, ended_seen=NOW - 9)))
    assert seen.job.status.restarts.counted == 1
    saved = replace(seen, pods=(ended(TRAINER, 0, code=75, message="checkpointStep=40"), seen.pods[1]))
    status = plan(saved, NOW + 1).status
    assert (status.failure.reason, status.failure.checkpoint_step) == (Reason.STOPPED_WITH_CHECKPOINT, 40)
    assert (status.restarts.counted, status.restarts.infrastructure, status.restarts.in_a_row) == (0, 1, 0)


def test_an_error_of_another_rank_does_not_make_an_uncounted_stop_a_counted_failure() -> None:
    seen = reconciled(broken(TRAINER, ended(TRAINER, 0, code=75, message="checkpointStep=40")))
    assert seen.job.status.failure.reason == Reason.STOPPED_WITH_CHECKPOINT
    status = plan(replace(seen, pods=(seen.pods[0], crashed(TRAINER, 1))), NOW + 1).status
    assert (status.failure, status.restarts) == (seen.job.status.failure, seen.job.status.restarts)


def test_a_rank_that_failed_by_itself_keeps_its_cause_although_its_node_is_lost_later() -> None:
    seen = reconciled(replace(broken(SINGLE, crashed(SINGLE)), nodes_gone=frozenset({"node-0"})))
    assert seen.job.status.failure.reason == Reason.PROGRAM_ERROR
    assert plan(replace(seen, nodes_gone=frozenset()), NOW + 1).status.restarts == seen.job.status.restarts


def test_a_log_that_cannot_be_read_again_does_not_remove_what_it_said() -> None:
    failed = crashed(PAIR, 1, message="=====")
    seen = reconciled(replace(broken(PAIR, failed), logs={"pod-uid-1-1": end_of_log(TRACEBACK)}))
    assert seen.job.status.failure.message == "ValueError: boom"
    for logs in ({}, {"pod-uid-1-1": NO_LOG}):
        assert plan(replace(seen, logs=logs), NOW + 1).status.failure == seen.job.status.failure


def test_a_log_may_arrive_until_the_next_gang_runs_and_the_failure_is_kept_afterwards() -> None:
    seen = reconciled(broken(SINGLE, crashed(SINGLE, message="=====")))
    whole = reconciled(replace(seen, pods=(*seen.pods, pod(SINGLE, 0, 2, running=False))))
    informed = reconciled(replace(whole, logs={"pod-uid-1-0": end_of_log(TRACEBACK)}), NOW + 1)
    runs = reconciled(observed(informed.job, pod(SINGLE, 0, 2)))
    for job_at in (informed, runs):
        assert plan(job_at, NOW + 1).status.failure.message == "ValueError: boom"


def test_the_deletion_of_outdated_evidence_does_not_change_its_cause() -> None:
    """Found by simulation: it evaded maxRestarts, since the record turned into one that is not counted."""
    of = program(nodes=1, restart={"keepAttempts": 0})
    seen = reconciled(broken(of, crashed(of)))
    outdated = finished_at(crashed(of, deletion_deadline=NOW + 1), NOW, NOW)
    status = plan(replace(seen, pods=(outdated,)), NOW + 1).status
    assert (status.failure.reason, status.restarts.counted) == (Reason.PROGRAM_ERROR, 1)


def test_a_deleted_rank_is_the_cause_of_the_others_that_stopped_with_it() -> None:
    """All ranks stop when one gets SIGTERM, and any of them may be seen to end first."""
    leaving = pod(TRAINER, 1, deletion_deadline=NOW + 8, deletion_requested=NOW - 2)
    saved = ended(TRAINER, 0, code=75, message="checkpointStep=33", ended_seen=NOW)
    gone = finished_at(ended(TRAINER, 1, code=75, deletion_deadline=NOW + 8, ended_seen=NOW), NOW, NOW - 2)
    gone = changed(gone, deletion_seen=NOW - 2)
    first = reconciled(broken(TRAINER, saved, leaving))
    assert first.job.status.failure.reason == Reason.STOPPED_WITH_CHECKPOINT
    at_once = plan(broken(TRAINER, saved, gone), NOW).status
    later = plan(replace(first, pods=(saved, gone)), NOW + 1).status
    for status in (at_once, later):
        assert (status.failure.reason, status.failure.rank) == (Reason.POD_DELETED, 1)
        assert status.failure.checkpoint_step == 33
    assert later.restarts == first.job.status.restarts
