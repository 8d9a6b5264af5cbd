"""A job whose progress stands still for too long is restarted."""

from dataclasses import replace

import pytest

from ddpjob_operator.api.names import Phase, Reason, contract
from ddpjob_operator.api.status import Progress
from ddpjob_operator.core.actions import LowerPodDeadline
from ddpjob_operator.core.failure.messages import failure_sentence
from ddpjob_operator.core.model import Observed
from ddpjob_operator.core.plan import plan
from support.builders import NOW, broken, changed, deleted, ended, job, pod, program, reconciled, running

STEP_12 = Progress(step=12)


def silent(seconds: float, progress: Progress | None, of=None, *, since: float = 10_000, **spec) -> Observed:
    """A gang that runs for `since` seconds and whose rank 0 has printed nothing new for so many."""
    seen = running(of or job(nodes=2, deadlines={"hangSeconds": 60}, **spec), NOW - since)
    return replace(seen, silent_seconds=seconds, progress=progress)


def hung(**spec) -> Observed:
    return reconciled(silent(60, STEP_12, **spec))


def with_lowered_deadlines(seen: Observed) -> Observed:
    return replace(seen, pods=tuple(replace(p, active_deadline_seconds=1) for p in seen.pods))


def test_no_new_step_for_too_long_is_a_hang_which_is_counted() -> None:
    status = plan(silent(60, Progress(step=12, phase="train")), NOW).status
    assert (status.attempt, status.failure.reason, status.restarts.counted) == (2, Reason.HUNG, 1)
    assert failure_sentence(status.failure) == (
        "No rank made progress in attempt 1: the log of rank 0 shows no progress after step 12 (train) for 1m0s"
        " (deadlines.hangSeconds); the pods are kept, with the Python stacks in their logs; rank 0 is in pod job-1-0 on node node-0"
    )


def test_a_hang_that_the_trainer_found_is_reported_with_its_diagnosis() -> None:
    of = job(nodes=2)
    diagnosis = "rank 1 (host b) is late: in data after 41 steps; rank 0 waits in backward or all-reduce after 41 steps"
    status = plan(broken(of, ended(of, 0, code=contract.EXIT_HUNG, message=f"rank 0\n{diagnosis}")), NOW).status
    assert (status.failure.reason, status.restarts.counted) == (Reason.HUNG, 1)
    assert failure_sentence(status.failure) == (
        f"Rank 0 (pod job-1-0, node node-0) made no progress in attempt 1: {diagnosis}"
    )


def test_the_next_reconcile_is_due_when_the_limit_is_reached() -> None:
    made = plan(silent(50, STEP_12), NOW)
    assert (made.status.attempt, made.wake_at) == (1, NOW + 10)


WITH_START = job(nodes=2, deadlines={"hangSeconds": 60, "startSeconds": 100})


@pytest.mark.parametrize(
    ("limit", "progress", "of"),
    [
        (180, Progress(step=12, phase="evaluate"), None),  # slow phases have three times as long
        (180, Progress(step=12, phase="checkpoint"), None),
        # After the last step a program uploads its model, or evaluates it.
        (3600, Progress(step=12, total_steps=12), None),
        (60, Progress(step=11, total_steps=12), None),
        (160, None, WITH_START),  # before the first step, startSeconds more
    ],
)
def test_the_limit_depends_on_the_phase(limit, progress, of) -> None:
    assert plan(silent(limit - 1, progress, of), NOW).status.attempt == 1
    assert plan(silent(limit, progress, of), NOW).status.attempt == 2


def test_a_rank_that_waits_for_others_to_start_does_not_hang() -> None:
    assert plan(silent(1000, None, WITH_START, since=159), NOW).status.attempt == 1


def test_a_rank_0_that_has_ended_does_not_hang() -> None:
    seen = silent(10**6, STEP_12)
    assert plan(replace(seen, pods=(ended(seen.job, 0), pod(seen.job, 1))), NOW).status.attempt == 1


def test_a_program_without_progress_lines_never_hangs_and_the_status_says_so() -> None:
    status = plan(silent(10**6, None, program(nodes=2)), NOW).status
    assert status.phase == Phase.RUNNING
    assert "cannot detect a hang" in status.message


@pytest.mark.parametrize("max_restarts", [6, 0])
def test_the_pods_are_stopped_by_a_lower_deadline_which_keeps_pods_and_logs(max_restarts) -> None:
    seen = hung(restart={"maxRestarts": max_restarts})
    status = seen.job.status
    assert (status.phase, status.failure.reason) == (Phase.RESTARTING if max_restarts else Phase.FAILED, Reason.HUNG)
    assert plan(seen, NOW).actions == tuple(LowerPodDeadline(name=f"job-1-{n}", uid=f"pod-uid-1-{n}") for n in range(2))


@pytest.mark.parametrize("max_restarts", [6, 0])
def test_pods_that_their_kubelets_do_not_stop_in_time_are_deleted(max_restarts) -> None:
    seen = with_lowered_deadlines(hung(restart={"maxRestarts": max_restarts}))
    made = plan(seen, NOW + 59)
    assert (made.actions, made.wake_at) == ((), NOW + 60)
    assert deleted(plan(seen, NOW + 60)) == {"job-1-0": None, "job-1-1": None}


def test_how_the_stopped_pods_end_does_not_change_the_record() -> None:
    seen = hung()
    killed = (ended(seen.job, rank, code=137, reason="DeadlineExceeded", phase="Failed") for rank in range(2))
    assert plan(replace(seen, pods=tuple(killed)), NOW + 40).status.failure == seen.job.status.failure


def test_pods_that_never_stop_are_reported_and_cause_no_further_reconciles() -> None:
    seen = hung()
    stuck = replace(seen, pods=tuple(changed(p, deletion_deadline=NOW + 90) for p in seen.pods))
    made = plan(stuck, NOW + 4000)
    assert (made.wake_at, made.status.reason) == (None, Reason.TERMINATING_TOO_LONG)
