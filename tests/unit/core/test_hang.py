from dataclasses import replace

import pytest

from builders import NOW, broken, changed, deleted, ended, job, pod, program, running, with_status
from ddpjob_operator.api.names import Phase, Reason, contract
from ddpjob_operator.api.status import Progress
from ddpjob_operator.core.failure.messages import sentence
from ddpjob_operator.core.model import LowerPodDeadline
from ddpjob_operator.core.plan import plan


def silent(seconds: float, progress: Progress | None, of=None):
    seen = running(of or job(nodes=2, deadlines={"hangSeconds": 60}), NOW - 10_000)
    return replace(seen, silent_seconds=seconds, progress=progress)


def test_no_new_step_for_too_long_is_a_hang_that_counts() -> None:
    status = plan(silent(60, Progress(step=12, phase="train")), NOW).status

    assert (status.attempt, status.failure.reason, status.restarts.counted) == (2, Reason.HUNG, 1)
    assert sentence(status.failure) == (
        "Rank 0 (pod job-1-0, node node-0) made no progress in attempt 1: it printed nothing after step 12 (train) for 1m0s"
        " (deadlines.hangSeconds); the pods are kept, with the Python stacks in their logs"
    )


def test_a_standstill_that_the_trainer_found_is_a_hang_with_its_verdict() -> None:
    of = job(nodes=2)
    verdict = "rank 1 (host b) is late: in data after 41 steps; rank 0 waits in backward or all-reduce after 41 steps"
    seen = broken(of, ended(of, 0, code=contract.EXIT_HUNG, message=f"rank 0\n{verdict}"))

    made = plan(seen, NOW)
    assert (made.status.failure.reason, made.status.restarts.counted) == (Reason.HUNG, 1)
    assert sentence(made.status.failure) == (
        f"Rank 0 (pod job-1-0, node node-0) made no progress in attempt 1: {verdict}"
    )


def test_until_then_it_is_looked_at_in_time() -> None:
    made = plan(silent(50, Progress(step=12)), NOW)

    assert (made.status.attempt, made.wake_at) == (1, NOW + 10)


@pytest.mark.parametrize("phase", ["evaluate", "checkpoint"])
def test_slow_phases_get_three_times_as_long(phase) -> None:
    assert plan(silent(179, Progress(step=12, phase=phase)), NOW).status.attempt == 1
    assert plan(silent(180, Progress(step=12, phase=phase)), NOW).status.attempt == 2


def test_the_trainer_must_say_something_in_time() -> None:
    of = job(nodes=2, deadlines={"hangSeconds": 60, "startSeconds": 100})

    assert plan(silent(159, None, of), NOW).status.attempt == 1
    assert plan(silent(160, None, of), NOW).status.attempt == 2


def test_a_rank_that_waits_for_others_to_start_does_not_hang() -> None:
    of = job(nodes=2, deadlines={"hangSeconds": 60, "startSeconds": 100})
    seen = replace(running(of, NOW - 159), silent_seconds=1000)

    assert plan(seen, NOW).status.attempt == 1


def test_a_program_that_prints_no_progress_never_hangs_and_the_status_says_so() -> None:
    status = plan(silent(10**6, None, program(nodes=2)), NOW).status

    assert status.phase == Phase.RUNNING
    assert "cannot detect a hang" in (status.message or "")


def hung():
    seen = silent(60, Progress(step=12))
    return with_status(seen, plan(seen, NOW).status)


def test_its_pods_are_ended_by_their_kubelets_which_keeps_pods_and_logs() -> None:
    made = plan(hung(), NOW)

    assert made.actions == tuple(LowerPodDeadline(name=f"job-1-{n}", uid=f"pod-uid-1-{n}") for n in range(2))
    assert made.status.failure.reason == Reason.HUNG


def test_a_kubelet_that_does_not_do_it_gets_a_deletion() -> None:
    seen = hung()
    lowered = replace(seen, pods=tuple(replace(p, active_deadline_seconds=1) for p in seen.pods))

    assert plan(lowered, NOW + 59).actions == ()
    assert plan(lowered, NOW + 59).wake_at == NOW + 60
    assert deleted(plan(lowered, NOW + 60)) == {"job-1-0": None, "job-1-1": None}


def test_how_its_pods_then_end_does_not_change_the_record() -> None:
    seen = hung()
    of = seen.job
    killed = replace(
        seen, pods=tuple(ended(of, rank, code=137, reason="DeadlineExceeded", phase="Failed") for rank in range(2))
    )

    assert plan(killed, NOW + 40).status.failure == seen.job.status.failure


def test_the_last_hang_of_a_job_keeps_its_pods_too() -> None:
    of = job(nodes=2, deadlines={"hangSeconds": 60}, restart={"maxRestarts": 0})
    seen = silent(60, Progress(step=12), of)
    seen = with_status(seen, plan(seen, NOW).status)
    assert (seen.job.status.phase, seen.job.status.reason) == (Phase.FAILED, Reason.HUNG)

    assert {type(action) for action in plan(seen, NOW).actions} == {LowerPodDeadline}


def test_a_rank_0_that_has_ended_does_not_hang() -> None:
    seen = silent(10**6, Progress(step=12))
    done = replace(seen, pods=(ended(seen.job, 0), pod(seen.job, 1)))

    assert plan(done, NOW).status.attempt == 1


def test_a_kubelet_that_never_does_it_makes_no_passes_without_end() -> None:
    seen = hung()
    stuck = replace(seen, pods=tuple(changed(p, deletion_deadline=NOW + 90) for p in seen.pods))

    made = plan(stuck, NOW + 4000)
    assert (made.wake_at, made.status.reason) == (None, Reason.TERMINATING_TOO_LONG)


def test_a_final_hang_whose_pods_are_not_ended_deletes_them_in_time() -> None:
    of = job(nodes=1, deadlines={"hangSeconds": 60}, restart={"maxRestarts": 0})
    seen = silent(60, Progress(step=12), of)
    seen = with_status(seen, plan(seen, NOW).status)
    lowered = replace(seen, pods=tuple(replace(p, active_deadline_seconds=1) for p in seen.pods))

    assert plan(lowered, NOW).wake_at == NOW + 60
    assert deleted(plan(lowered, NOW + 60)) == {"job-1-0": None}
