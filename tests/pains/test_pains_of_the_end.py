"""Pains 11 to 13, 15 and 16: how a job ends, what is left of it, and what is told."""

from dataclasses import replace

import pytest

from builders import NOW, TRACEBACK, broken, deleted, ended, job, observed, pod, program, running, with_status
from ddpjob_operator.api.names import ConditionType, Phase, Reason
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.model import DeletePod, DeletePods, LowerPodDeadline, ReadLog, Rejection
from ddpjob_operator.core.plan import plan
from pain_steps import may_start_at, rendered, reported, survivors_gone, whole, written

RUNS = {"running": {"startedAt": "2026-11-21T10:00:00Z"}}
DONE = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-11-21T10:09:00Z"}}


def stopped_by(seen) -> set[str]:
    """Names of the pods that the next plan stops, in whatever way."""
    actions = plan(seen, NOW).actions
    if any(isinstance(action, DeletePods) for action in actions):
        return {p.name for p in seen.pods}
    return {action.name for action in actions if isinstance(action, DeletePod | LowerPodDeadline)}


def test_pain_11_no_pod_of_a_failed_job_runs_on() -> None:
    of = program(nodes=4, restart={"maxRestarts": 0})
    seen = written(broken(of, ended(of, 2, code=1, message=TRACEBACK)))

    assert seen.job.status.phase == Phase.FAILED
    assert stopped_by(seen) == {"job-1-0", "job-1-1", "job-1-3"}


def test_pain_11_no_container_of_a_succeeded_job_runs_on() -> None:
    of = program(nodes=2, template={"spec": {"containers": [{"name": "log-shipper", "image": "l:1"}]}})
    pods = tuple(reported(of, rank, trainer=DONE, log_shipper=RUNS) for rank in range(2))
    seen = written(replace(running(of), pods=pods, logs={p.uid: "" for p in pods}))

    assert seen.job.status.phase == Phase.SUCCEEDED
    assert stopped_by(seen) == {"job-1-0", "job-1-1"}


@pytest.mark.parametrize(
    ("deadlines", "later"),
    [({"activeSeconds": 60}, 60), ({"queueSeconds": 60}, 60)],
    ids=["active", "queued"],
)
def test_pain_11_no_pod_of_a_job_that_ran_out_of_time_runs_on(deadlines, later) -> None:
    of = program(nodes=2, deadlines=deadlines)
    seen = running(of)
    if "queueSeconds" in deadlines:
        waiting = pod(of, 1, node=None, running=False, phase="Pending")
        seen = written(observed(of, pod(of, 0), waiting))
    seen = written(seen, NOW + later)

    assert seen.job.status.phase == Phase.FAILED
    assert stopped_by(seen) == {"job-1-0", "job-1-1"}


def test_pain_12_success_is_the_success_of_all_ranks_not_of_rank_0() -> None:
    of = program(nodes=3)
    seen = broken(of, ended(of, 0, ended_seen=NOW))
    made = plan(seen, NOW + 31)
    assert (made.status.phase, made.status.reason) == (Phase.RUNNING, Reason.FINISHING)
    assert "1 of 3 ranks have ended well, rank 1 (pod job-1-1, node node-1) runs on" in (made.status.message or "")
    assert deleted(made) == {}

    done = broken(of, *(ended(of, rank) for rank in range(3)))
    assert plan(replace(done, logs={"pod-uid-1-0": ""}), NOW).status.phase == Phase.SUCCEEDED


def test_pain_12_a_rank_that_fails_after_rank_0_ended_well_is_a_failure() -> None:
    of = program(nodes=2, restart={"maxRestarts": 0})
    status = plan(broken(of, ended(of, 0), ended(of, 1, code=1, message=TRACEBACK)), NOW).status

    assert (status.phase, status.failure.rank) == (Phase.FAILED, 1)


def test_pain_13_failed_pods_stay_through_restarts_and_at_the_end() -> None:
    seen, now = running(program(nodes=2, restart={"maxRestarts": 2, "keepAttempts": 2})), NOW
    for attempt in (1, 2, 3):
        failed = ended(seen.job, 1, attempt, code=1, message=TRACEBACK)
        seen = written(replace(seen, pods=(*seen.pods[:-1], failed)), now)
        assert f"job-{attempt}-1" not in deleted(plan(seen, now))
        if not seen.job.status.finished:
            now = may_start_at(seen.job, now)
            assert deleted(plan(survivors_gone(seen), now)) == {}
            seen = whole(seen, now)

    assert seen.job.status.phase == Phase.FAILED
    assert set(deleted(plan(seen, now))) == {"job-3-0"}
    left = {p.name for p in survivors_gone(seen).pods}
    assert left == {"job-1-1", "job-2-1", "job-3-1"}


def test_pain_15_the_log_that_is_read_is_that_of_the_pod_that_failed() -> None:
    """No container is restarted in place, so there is no earlier instance whose log would have to be asked for."""
    of = program(nodes=2)
    assert rendered(of)["spec"]["restartPolicy"] == "Never"
    seen = broken(of, ended(of, 1, code=1))
    made = plan(seen, NOW)
    assert made.lookups == (ReadLog(pod="job-1-1", uid="pod-uid-1-1"),)

    seen = survivors_gone(with_status(seen, made.status))
    (new, *_) = (pod(seen.job, rank, 2, running=False, phase="Pending") for rank in range(2))
    answered = replace(seen, pods=(*seen.pods, new), logs={"pod-uid-1-1": TRACEBACK})
    assert plan(answered, NOW + 1).status.failure.message == "ValueError: boom"


def test_pain_15_a_log_that_comes_back_empty_leaves_the_exit_code_and_the_last_words() -> None:
    of = program(nodes=1, restart={"maxRestarts": 0})
    assert rendered(of)["spec"]["containers"][0]["terminationMessagePolicy"] == "FallbackToLogsOnError"
    seen = broken(of, ended(of, 0, code=3, message="disk quota exceeded"))
    failure = plan(replace(seen, logs={"pod-uid-1-0": ""}), NOW).status.failure

    assert (failure.exit_code, failure.message) == (3, "disk quota exceeded")


MOMENTS = ("creating", "waiting", "refused", "running", "restarting", "running again", "failed")


def life(of) -> dict[str, DDPJobStatus]:
    """The statuses of a job that waits, runs, is restarted, runs again and fails, by moment."""
    waiting = observed(of, *(pod(of, rank, node=None, running=False, phase="Pending") for rank in range(2)))
    refused = observed(of, pod(of, 0), rejections={"job-1-1": Rejection("exceeded quota: team, requested: pods=1")})
    up = running(of)
    restarted = written(replace(up, pods=(up.pods[0], ended(of, 1, code=1, message=TRACEBACK))))
    again = whole(restarted, NOW)
    failed = replace(again, pods=(*again.pods[:-1], ended(again.job, 1, 2, code=1, message=TRACEBACK)))
    return {
        "creating": plan(observed(of, service=None), NOW).status,
        "waiting": plan(waiting, NOW).status,
        "refused": plan(refused, NOW).status,
        "running": up.job.status,
        "restarting": restarted.job.status,
        "running again": again.job.status,
        "failed": plan(failed, NOW).status,
    }


@pytest.mark.parametrize("moment", MOMENTS)
def test_pain_16_status_alone_says_where_a_job_stands_and_why(moment) -> None:
    status = life(program(nodes=2, restart={"maxRestarts": 1}))[moment]

    assert status.phase in set(Phase)
    assert status.reason in set(Reason)
    assert status.message
    assert status.observed_generation == 1
    true = {condition.type for condition in status.conditions if condition.status == "True"}
    exclusive = true & {ConditionType.RUNNING, ConditionType.RESTARTING, ConditionType.FAILED, ConditionType.SUCCEEDED}
    expected = {"running": {"Running"}, "restarting": {"Restarting"}, "running again": {"Running"}}
    assert exclusive == ({"Failed"} if moment == "failed" else expected.get(moment, set()))


def test_pain_16_an_error_stands_in_the_status_and_not_in_events_alone() -> None:
    seen = observed(program(), rejections={"job-1-0": Rejection('pods "job-1-0" is forbidden: violates PodSecurity')})

    assert "violates PodSecurity" in (plan(seen, NOW).status.message or "")


def test_pain_16_failed_never_flips_back() -> None:
    of = job(nodes=2, restart={"maxRestarts": 0})
    failed = written(broken(of, ended(of, 1, code=1, message=TRACEBACK)))
    assert failed.job.status.condition(ConditionType.FAILED)

    for pods in ((), (ended(of, 0), ended(of, 1)), running(of).pods):
        for suspend in (False, True):
            spec = failed.job.spec.model_copy(update={"suspend": suspend})
            later = replace(failed, job=replace(failed.job, spec=spec), pods=pods)
            assert plan(later, NOW + 9999).status == failed.job.status
