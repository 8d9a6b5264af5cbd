"""The first record of a failure is made in a hurry; what comes to light later may only make it better."""

from dataclasses import replace

from builders import ECHO, NOW, TRACEBACK, broken, changed, ended, job, observed, pod, program, running, with_status
from ddpjob_operator.api.names import Reason
from ddpjob_operator.core.plan import plan

SIGTERM_WORDS = 'Traceback (most recent call last):\n  File "t.py", line 1\nSignalException: got signal: 15\n'


def after(seen, now=NOW):
    """The next attempt's status written."""
    return with_status(seen, plan(seen, now).status)


def finished_at(of_pod, at, requested=None):
    return changed(of_pod, exit=replace(of_pod.exit, finished=at), deletion_requested=requested)


def test_an_echo_of_a_dying_node_becomes_its_loss_and_does_not_count() -> None:
    of = program(nodes=2)
    seen = after(broken(of, ended(of, 0, code=1, message=ECHO)))
    assert seen.job.status.restarts.counted == 1

    lost = pod(of, 1, deletion_deadline=NOW - 5, deletion_requested=NOW - 6)
    status = plan(replace(seen, pods=(seen.pods[0], lost), nodes_gone=frozenset({"node-1"})), NOW).status
    assert (status.failure.reason, status.failure.rank) == (Reason.NODE_LOST, 1)
    assert (status.restarts.counted, status.restarts.infrastructure) == (0, 1)


def test_how_a_program_answers_a_deletion_does_not_turn_it_into_its_own_error() -> None:
    of = program(nodes=2)
    seen = after(replace(running(of), pods=running(of).pods[:1]))
    assert seen.job.status.failure.reason == Reason.POD_DELETED

    deleted = ended(of, 1, code=1, message=SIGTERM_WORDS, deletion_deadline=NOW + 9)
    status = plan(replace(seen, pods=(seen.pods[0], finished_at(deleted, NOW, NOW - 1))), NOW).status
    assert (status.failure.reason, status.restarts.counted) == (Reason.POD_DELETED, 0)


def test_a_stop_that_the_trainer_explains_by_its_stacks_stays_what_the_cluster_said() -> None:
    """Found on real nodes: the log of stacks, taken for the last words, made a deleted pod a program error."""
    of = job(nodes=2)
    stacks = 'Current thread (most recent call first):\n  File "<frozen runpy>", line 198 in _run_module_as_main'
    gone = ended(of, 1, code=75, message=stacks, deletion_deadline=NOW + 9)
    seen = after(broken(of, finished_at(gone, NOW, NOW - 1)))
    assert seen.job.status.failure.reason == Reason.POD_DELETED

    saved = replace(seen, pods=(ended(of, 0, code=75, message="checkpointStep=40"), seen.pods[1]))
    failure = plan(saved, NOW + 1).status.failure
    assert (failure.reason, failure.checkpoint_step) == (Reason.POD_DELETED, 40)


def test_a_survivor_that_answers_our_deletion_is_no_cause() -> None:
    of = program(nodes=2)
    seen = after(broken(of, ended(of, 0, code=1, message=ECHO)))
    for code, message in ((0, ""), (1, SIGTERM_WORDS), (75, "checkpointStep=9")):
        ours = ended(of, 1, code=code, message=message, deletion_deadline=NOW + 1)
        status = plan(replace(seen, pods=(seen.pods[0], finished_at(ours, NOW, NOW))), NOW + 1).status
        assert (status.failure, status.restarts) == (seen.job.status.failure, seen.job.status.restarts)


def test_a_survivor_that_had_ended_before_is() -> None:
    of = program(nodes=2)
    seen = after(broken(of, ended(of, 0, code=1, message=ECHO)))
    cause = finished_at(ended(of, 1, code=1, message=TRACEBACK, deletion_deadline=NOW + 1), NOW - 2, NOW)

    assert plan(replace(seen, pods=(seen.pods[0], cause)), NOW + 1).status.failure.message == "ValueError: boom"


def test_a_rank_0_that_saves_for_long_turns_an_error_into_a_stop() -> None:
    of = job(nodes=2)
    seen = after(broken(of, ended(of, 1, code=75, ended_seen=NOW - 9)))
    assert seen.job.status.restarts.counted == 1

    saved = replace(seen, pods=(ended(of, 0, code=75, message="checkpointStep=40"), seen.pods[1]))
    status = plan(saved, NOW + 1).status
    assert (status.failure.reason, status.failure.checkpoint_step) == (Reason.STOPPED_WITH_CHECKPOINT, 40)
    assert (status.restarts.counted, status.restarts.infrastructure, status.restarts.in_a_row) == (0, 1, 0)


def test_a_rank_that_ended_by_itself_on_a_node_that_then_goes_away_keeps_its_cause() -> None:
    of = program(nodes=1)
    seen = replace(broken(of, ended(of, 0, code=1, message=TRACEBACK)), nodes_gone=frozenset({"node-0"}))
    first = after(seen)
    assert first.job.status.failure.reason == Reason.PROGRAM_ERROR

    assert plan(replace(first, nodes_gone=frozenset()), NOW + 1).status.restarts == first.job.status.restarts


def test_a_restarted_operator_does_not_forget_what_a_log_said() -> None:
    of = program(nodes=2)
    seen = after(replace(broken(of, ended(of, 1, code=1, message="=====")), logs={"pod-uid-1-1": TRACEBACK}))
    known = seen.job.status.failure
    assert known.message == "ValueError: boom"

    for logs in ({}, {"pod-uid-1-1": ""}):
        assert plan(replace(seen, logs=logs), NOW + 1).status.failure == known


def test_a_log_may_come_until_the_new_gang_runs() -> None:
    of = program(nodes=1)
    seen = after(broken(of, ended(of, 0, code=1, message="=====")))
    starting = pod(of, 0, 2, running=False)
    whole = after(replace(seen, pods=(*seen.pods, starting)))

    late = replace(whole, logs={"pod-uid-1-0": TRACEBACK})
    assert plan(late, NOW + 1).status.failure.message == "ValueError: boom"


def test_a_job_with_an_old_failure_forgets_nothing_once_it_runs() -> None:
    of = program(nodes=1)
    seen = after(broken(of, ended(of, 0, code=1, message=TRACEBACK)))
    runs = after(observed(seen.job, pod(of, 0, 2)))

    assert plan(runs, NOW + 1).status.failure.message == "ValueError: boom"


def test_the_deletion_of_evidence_that_is_not_kept_is_not_somebody_else_s() -> None:
    """Found by simulation: it evaded maxRestarts, since the record turned into one that does not count."""
    of = program(nodes=1, restart={"keepAttempts": 0})
    seen = after(broken(of, ended(of, 0, code=1, message=TRACEBACK)))
    ours = ended(of, 0, code=1, message=TRACEBACK, deletion_deadline=NOW + 1)

    status = plan(replace(seen, pods=(finished_at(ours, NOW, NOW),)), NOW + 1).status
    assert (status.failure.reason, status.restarts.counted) == (Reason.PROGRAM_ERROR, 1)


def test_a_rank_that_was_taken_away_is_the_cause_of_those_that_stopped_with_it() -> None:
    """All ranks agree to stop when one is told to, and any of them may be seen to end first."""
    of = job(nodes=2)
    leaving = pod(of, 1, deletion_deadline=NOW + 8, deletion_requested=NOW - 2)
    saved = ended(of, 0, code=75, message="checkpointStep=33", ended_seen=NOW)
    gone = finished_at(ended(of, 1, code=75, deletion_deadline=NOW + 8, ended_seen=NOW), NOW, NOW - 2)
    gone = changed(gone, deletion_seen=NOW - 2)
    both = plan(broken(of, saved, gone), NOW).status
    assert (both.failure.reason, both.failure.rank, both.failure.checkpoint_step) == (Reason.POD_DELETED, 1, 33)

    first = after(broken(of, saved, leaving))
    assert first.job.status.failure.reason == Reason.STOPPED_WITH_CHECKPOINT
    then = plan(replace(first, pods=(saved, gone)), NOW + 1).status
    assert (then.failure.reason, then.failure.rank, then.failure.checkpoint_step) == (Reason.POD_DELETED, 1, 33)
    assert then.restarts == first.job.status.restarts


def test_our_deletion_is_ours_although_the_api_servers_clock_is_behind() -> None:
    """Found by simulation: a clock two seconds off made survivors that we deleted the cause."""
    of = program(nodes=2)
    seen = after(broken(of, ended(of, 0, code=1, message=ECHO)))
    ours = ended(of, 1, code=1, message=SIGTERM_WORDS, deletion_deadline=NOW - 1, deletion_seen=NOW)

    status = plan(replace(seen, pods=(seen.pods[0], finished_at(ours, NOW - 2, NOW - 2))), NOW + 1).status
    assert (status.failure.rank, status.restarts.counted) == (0, 1)
