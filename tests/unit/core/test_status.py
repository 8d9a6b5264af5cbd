"""At every moment of its life the status alone says what state a job is in, and why."""

from dataclasses import replace

import pytest

from ddpjob_operator.api.names import ConditionType, Phase, Reason
from ddpjob_operator.api.status import DDPJobStatus, Failure
from ddpjob_operator.core.failure.messages import failure_sentence
from ddpjob_operator.core.model import Job, Rejection
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.times import rfc3339
from support.builders import NOW, broken, crashed, ended, job, observed, pending, pod, program, reconciled, running

EXCLUSIVE = {ConditionType.RUNNING, ConditionType.RESTARTING, ConditionType.FAILED, ConditionType.SUCCEEDED}


def life(of: Job) -> dict[str, DDPJobStatus]:
    """The statuses of a job that waits, runs, restarts, runs again and fails, by moment."""
    waiting = observed(of, pending(of, 0), pending(of, 1))
    refused = observed(of, pod(of, 0), rejections={"job-1-1": Rejection("exceeded quota: team, requested: pods=1")})
    up = running(of)
    failed = crashed(of, 1)
    restarted = reconciled(replace(up, pods=(up.pods[0], failed)))
    second = restarted.job
    again = reconciled(observed(second, failed, *(pod(second, rank, 2) for rank in range(2))))
    last = replace(again, pods=(*again.pods[:-1], crashed(again.job, 1, 2)))
    return {
        "creating": plan(observed(of, service=None), NOW).status,
        "waiting": plan(waiting, NOW).status,
        "refused": plan(refused, NOW).status,
        "running": up.job.status,
        "restarting": second.status,
        "running again": again.job.status,
        "failed": plan(last, NOW).status,
    }


@pytest.mark.parametrize(
    ("moment", "condition"),
    [
        ("creating", None),
        ("waiting", None),
        ("refused", None),
        ("running", ConditionType.RUNNING),
        ("restarting", ConditionType.RESTARTING),
        ("running again", ConditionType.RUNNING),
        ("failed", ConditionType.FAILED),
    ],
)
def test_phase_reason_message_and_conditions_agree(moment: str, condition: ConditionType | None) -> None:
    status = life(program(nodes=2, restart={"maxRestarts": 1}))[moment]
    true = {found.type for found in status.conditions if found.status == "True"}
    assert status.phase in set(Phase)
    assert status.reason in set(Reason)
    assert status.message
    assert status.observed_generation == 1
    assert true & EXCLUSIVE == ({condition} if condition else set())


def test_a_condition_keeps_its_transition_time_until_its_status_changes() -> None:
    seen = running(program(nodes=2), NOW)

    def times(moment, now: float) -> dict[str, str]:
        return {c.type: c.last_transition_time for c in plan(moment, now).status.conditions}

    same, failed = times(seen, NOW + 60), times(replace(seen, pods=(seen.pods[0], crashed(seen.job, 1))), NOW + 60)
    assert same == {c.type: c.last_transition_time for c in seen.job.status.conditions}
    assert failed[ConditionType.RUNNING] == failed[ConditionType.RESTARTING] == rfc3339(NOW + 60)


def test_a_job_without_checkpoints_says_what_a_restart_costs() -> None:
    warning = "without spec.checkpoint a restart begins at step 0"
    assert warning in running(job(nodes=2)).job.status.message
    assert warning not in running(job(nodes=2, checkpoint={"volume": {"emptyDir": {}}})).job.status.message


def test_a_pod_that_a_living_node_does_not_stop_is_reported_with_what_to_do() -> None:
    of = program(nodes=2)
    seen = reconciled(broken(of, pod(of, 1, deletion_deadline=NOW - 5)))
    status = plan(replace(seen, pods=seen.pods[1:]), NOW + 60).status
    assert status.reason == Reason.TERMINATING_TOO_LONG
    assert "node-1" in status.message
    assert "out-of-service" in status.message


def test_a_port_in_use_is_the_failure_of_rank_0() -> None:
    error = (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address."
        " port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    )
    of = program(nodes=2)
    taken = ended(of, 0, code=1, message=f'Traceback (most recent call last):\n  File "t.py", line 1\n{error}\n')
    failure = plan(broken(of, taken), NOW).status.failure
    assert failure.reason == Reason.PROGRAM_ERROR, "and not an echo of another rank"
    assert failure_sentence(failure).startswith("Rank 0 (pod job-1-0, node node-0)")
    assert "port: 29500" in failure_sentence(failure)


LONG = "word " * 819 + "!"


def failed_before(message: str) -> DDPJobStatus:
    return DDPJobStatus(
        attempt=2, failure=Failure(attempt=1, reason=Reason.PROGRAM_ERROR, message=message, time=rfc3339(NOW))
    )


@pytest.mark.parametrize(
    "of",
    [
        job(status=failed_before(LONG)),
        job(processesPerNode=2, command=["accelerate", "launch", "train.py", *[LONG] * 9]),
        replace(job(status=failed_before(LONG)), spec_error=LONG, spec=None),
    ],
    ids=["failure", "command", "spec"],
)
def test_no_message_is_longer_than_the_api_server_takes(of: Job) -> None:
    pods = [pod(of, rank, of.status.attempt) for rank in range(of.spec.nodes)] if of.spec else []
    status = plan(observed(of, *pods), NOW).status
    assert status == DDPJobStatus.model_validate(status.as_json())
    assert len(status.message) > 100
