"""Pains 1 to 6 and 21 to 23: what happens to a gang when something goes wrong with one of its pods."""

from dataclasses import replace

import pytest

from builders import (
    ECHO,
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
from ddpjob_operator.api.names import Phase, Reason
from ddpjob_operator.api.status import Progress
from ddpjob_operator.core.failure.messages import sentence
from ddpjob_operator.core.failure.restart import MAX_INFRASTRUCTURE_RESTARTS
from ddpjob_operator.core.model import LowerPodDeadline, ReadNode
from ddpjob_operator.core.plan import plan
from pain_steps import bodies, environment, may_start_at, rendered, reported, survivors_gone, whole, written

RUNS = {"running": {"startedAt": "2026-11-21T10:00:00Z"}}
FAILED = {"terminated": {"exitCode": 1, "reason": "Error", "message": TRACEBACK, "finishedAt": "2026-11-21T10:09:00Z"}}


def test_pain_01_one_failed_pod_restarts_the_whole_gang() -> None:
    of = program(nodes=8)
    seen = written(broken(of, ended(of, 5, code=1, message=TRACEBACK)))

    assert deleted(plan(seen, NOW)) == {f"job-1-{rank}": 1 for rank in range(8) if rank != 5}
    assert created(plan(survivors_gone(seen), NOW)) == [f"job-2-{rank}" for rank in range(8)]


def test_pain_01_ranks_that_time_out_later_are_no_failures_of_their_own() -> None:
    """The other ranks lose their peer at different moments, some before it shows as failed: one restart, one count."""
    of = program(nodes=4)
    seen = broken(of, *(ended(of, rank, code=1, message=ECHO, ended_seen=NOW - 1) for rank in (0, 2)))
    assert plan(seen, NOW).status.attempt == 1

    seen = replace(seen, pods=(*seen.pods[:1], ended(of, 1, code=1, message=TRACEBACK, ended_seen=NOW), *seen.pods[2:]))
    seen = written(seen, NOW)
    late = replace(seen, pods=(*seen.pods[:3], ended(of, 3, code=1, message=ECHO)))
    status = plan(late, NOW + 1).status
    assert (status.attempt, status.restarts.counted, status.failure.rank) == (2, 1, 1)


def test_pain_02_a_failure_recreates_every_pod_and_restarts_no_container_in_place() -> None:
    of = program(nodes=100)
    seen = survivors_gone(written(broken(of, ended(of, 99, code=1, message=TRACEBACK))))
    new = bodies(plan(seen, NOW))

    assert len(new) == 100
    assert not set(new) & {p.name for p in running(of).pods}
    assert {body["spec"]["restartPolicy"] for body in new.values()} == {"Never"}


@pytest.mark.parametrize("max_restarts", [0, 1, 3])
def test_pain_03_a_program_that_always_fails_ends_after_max_restarts(max_restarts) -> None:
    seen, now = running(program(nodes=2, restart={"maxRestarts": max_restarts})), NOW
    for _ in range(max_restarts + 5):
        of = seen.job
        seen = replace(seen, pods=(*seen.pods[:-1], ended(of, 1, of.status.attempt, code=1, message=TRACEBACK)))
        seen = written(seen, now)
        if seen.job.status.finished:
            break
        now = may_start_at(seen.job, now)
        seen = whole(seen, now)

    assert (seen.job.status.phase, seen.job.status.attempt) == (Phase.FAILED, max_restarts + 1)
    assert "maxRestarts" in (seen.job.status.message or "")


def test_pain_03_a_cluster_that_always_takes_pods_away_ends_the_job_too() -> None:
    seen, now = running(program(nodes=1)), NOW
    for _ in range(2 * MAX_INFRASTRUCTURE_RESTARTS):
        seen = written(replace(seen, pods=()), now)
        if seen.job.status.finished:
            break
        now = may_start_at(seen.job, now)
        seen = whole(seen, now)

    assert seen.job.status.reason == Reason.TOO_MANY_INFRASTRUCTURE_RESTARTS
    assert seen.job.status.attempt == MAX_INFRASTRUCTURE_RESTARTS + 1


def test_pain_04_a_dead_node_holds_the_restart_up_only_until_it_is_known_to_be_dead() -> None:
    of = program(nodes=2)
    seen = written(broken(of, pod(of, 1, deletion_deadline=NOW - 5)))
    seen = replace(seen, pods=seen.pods[1:])

    waiting = plan(seen, NOW)
    assert created(waiting) == []
    assert waiting.lookups == (ReadNode(name="node-1"),)
    assert "waiting for pod job-1-1 to stop" in (waiting.status.message or "")

    known = plan(replace(seen, nodes_gone=frozenset({"node-1"})), NOW)
    assert created(known) == ["job-2-0", "job-2-1"]


def test_pain_04_what_is_left_of_a_dead_node_s_pod_is_removed() -> None:
    of = program(nodes=2)
    seen = written(broken(of, pod(of, 1, deletion_deadline=NOW - 5)))
    seen = written(replace(seen, nodes_gone=frozenset({"node-1"})))

    assert deleted(plan(replace(seen, pods=seen.pods[1:]), NOW)) == {"job-1-1": 0}


def test_pain_04_a_pod_that_does_not_go_from_a_living_node_is_told_with_what_to_do() -> None:
    of = program(nodes=2)
    seen = written(broken(of, pod(of, 1, deletion_deadline=NOW - 5)))
    status = plan(replace(seen, pods=seen.pods[1:]), NOW + 60).status

    assert status.reason == Reason.TERMINATING_TOO_LONG
    assert "node-1" in (status.message or "")
    assert "out-of-service" in (status.message or "")


def test_pain_04_a_long_grace_of_the_survivors_does_not_stretch_the_restart() -> None:
    of = program(nodes=2, template={"spec": {"terminationGracePeriodSeconds": 600}})
    seen = written(broken(of, ended(of, 1, code=1, message=TRACEBACK), pod(of, 0, grace_seconds=600)))

    assert deleted(plan(seen, NOW)) == {"job-1-0": 1}


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        pytest.param(None, Reason.POD_DELETED, id="pod gone"),
        pytest.param({"phase": "Failed", "reason": "Evicted", "all_ended": True}, Reason.EVICTED, id="evicted"),
        pytest.param(
            {"phase": "Failed", "reason": "Terminated", "all_ended": True}, Reason.NODE_DRAINED, id="shutdown"
        ),
        pytest.param({"deletion_deadline": NOW - 5}, Reason.POD_DELETED, id="node silent"),
    ],
)
def test_pain_05_a_pod_that_is_taken_away_restarts_the_gang_and_does_not_count(end, reason) -> None:
    of = program(nodes=3)
    seen = broken(of, *([pod(of, 1, running=False, **end)] if end else []))
    status = plan(seen if end else replace(seen, pods=(seen.pods[0], seen.pods[2])), NOW).status

    assert (status.attempt, status.failure.reason, status.failure.rank) == (2, reason, 1)
    assert (status.restarts.counted, status.restarts.infrastructure) == (0, 1)


def test_pain_06_a_failure_is_noticed_at_the_first_container_that_ended() -> None:
    """Its pod still has the phase Running, a second container of it lives, and all other pods run."""
    of = program(nodes=3, template={"spec": {"containers": [{"name": "log-shipper", "image": "l:1"}]}})
    pods = [reported(of, rank, trainer=RUNS, log_shipper=RUNS) for rank in range(3)]
    seen = written(observed(of, *pods))
    assert seen.job.status.phase == Phase.RUNNING
    failed = reported(of, 2, trainer=FAILED, log_shipper=RUNS)

    status = plan(replace(seen, pods=(*pods[:2], failed)), NOW).status
    assert (status.attempt, status.phase, status.failure.rank) == (2, Phase.RESTARTING, 2)


def test_pain_21_a_preempted_gang_saves_is_created_again_and_tells_what_it_saved() -> None:
    of = job(nodes=2, checkpoint={"volume": {"emptyDir": {}}})
    leaving = pod(of, 1, deletion_deadline=NOW + 30, disruption="PreemptionByScheduler: preempting")
    seen = broken(of, leaving)
    assert plan(seen, NOW).status.attempt == 1, "it has its grace to save in"

    stopped = ended(of, 1, code=75, disruption=leaving.disruption, deletion_deadline=NOW + 30)
    seen = written(replace(seen, pods=(seen.pods[0], stopped)))
    assert deleted(plan(seen, NOW)) == {"job-1-0": None}, "rank 0 has its own grace to save in, too"

    seen = written(replace(seen, pods=(ended(of, 0, code=75, message="checkpointStep=52"), stopped)))
    failure, restarts = seen.job.status.failure, seen.job.status.restarts
    assert (failure.reason, failure.checkpoint_step, restarts.counted) == (Reason.PREEMPTED, 52, 0)
    assert created(plan(seen, NOW)) == ["job-2-0", "job-2-1"]


def test_pain_22_every_attempt_finds_the_same_checkpoints_also_after_delete_and_apply() -> None:
    first = job(nodes=2, checkpoint={"volume": {"persistentVolumeClaim": {"claimName": "c"}}})
    second = replace(first, status=first.status.model_copy(update={"attempt": 2}))
    applied_again = replace(first, uid="another-uid")
    pods = [rendered(of, rank) for of in (first, second, applied_again) for rank in range(2)]

    assert {environment(body)["DDPJOB_CHECKPOINT_DIR"] for body in pods} == {"/checkpoints/default/job"}
    for body in pods:
        (volume,) = (v["name"] for v in body["spec"]["volumes"] if "persistentVolumeClaim" in v)
        mounts = {mount["name"]: mount["mountPath"] for mount in body["spec"]["containers"][0]["volumeMounts"]}
        assert mounts[volume] == "/checkpoints"


def test_pain_22_a_job_that_keeps_no_checkpoints_is_told_what_a_restart_will_cost() -> None:
    assert "without spec.checkpoint a restart begins at step 0" in (running(job(nodes=2)).job.status.message or "")
    kept = running(job(nodes=2, checkpoint={"volume": {"emptyDir": {}}})).job.status
    assert "begins at step 0" not in (kept.message or "")


def test_pain_23_a_gang_that_hangs_while_all_pods_live_is_restarted_counted_and_kept_as_evidence() -> None:
    of = job(nodes=2, deadlines={"hangSeconds": 60})
    seen = replace(running(of), progress=Progress(step=120, phase="train"), silent_seconds=60)
    seen = written(seen, NOW + 60)

    failure = seen.job.status.failure
    assert (failure.reason, seen.job.status.restarts.counted) == (Reason.HUNG, 1)
    assert "step 120" in sentence(failure)
    stops = [action for action in plan(seen, NOW + 60).actions if isinstance(action, LowerPodDeadline)]
    assert [action.name for action in stops] == ["job-1-0", "job-1-1"], "by their kubelets, which keeps the logs"


def test_pain_23_a_node_that_is_tainted_for_its_gpus_restarts_the_gang_without_counting() -> None:
    """What watches GPUs taints the node; the gang leaves it, and a node that was blamed twice is avoided as well."""
    of = program(nodes=2)
    taken = ended(of, 1, code=143, disruption="DeletionByTaintManager: Taint manager: deleting due to NoExecute taint")
    status = plan(broken(of, taken), NOW).status
    assert (status.failure.reason, status.restarts.counted) == (Reason.POD_DISRUPTED, 0)

    killed = [status.failure.model_copy(update={"attempt": n, "reason": Reason.KILLED}) for n in (1, 2)]
    twice = status.model_copy(update={"attempt": 3, "attempts": killed, "failure": killed[-1]})
    (body, _) = bodies(plan(with_status(observed(replace(of, status=twice)), twice), NOW)).values()
    preferred = body["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert "node-1" in str(preferred)
