"""The brain: what to do for one job, given all that is known of it.

Pure and level-triggered. Nothing here remembers: clocks and counters stand in the status, everything else is derived
from pods. Run on the state that a plan asks for, `plan` asks for nothing.
"""

from collections.abc import Sequence
from dataclasses import replace

from ddpjob_operator.api.names import ConditionType, Phase, Reason
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import DDPJobStatus, Failure
from ddpjob_operator.core import failure as failures
from ddpjob_operator.core.attempts import begun, finished, next_attempt, remembering, showing
from ddpjob_operator.core.deadlines import next_deadline
from ddpjob_operator.core.failure import End
from ddpjob_operator.core.gang import Gang, gang_of
from ddpjob_operator.core.model import Action, DeleteJob, DeletePod, Observed, Plan, Question, ReadLog
from ddpjob_operator.core.pods import create_pod, pod_name, spec_hash
from ddpjob_operator.core.progress import latest_progress
from ddpjob_operator.core.refinement import latest_failure, refined
from ddpjob_operator.core.restart import Verdict, judge
from ddpjob_operator.core.service import ensure_service
from ddpjob_operator.core.stopping import SURVIVOR_GRACE_SECONDS, has_stopped, next_overdue, node_questions, stop
from ddpjob_operator.core.times import epoch_seconds, rfc3339
from ddpjob_operator.core.waiting import explain

_CREATED = ConditionType.CREATED


def plan(seen: Observed, now: float) -> Plan:
    """What to do for one job at this moment, in seconds since the epoch.

    What a user or a cluster can do ends in a status, not in an exception.
    """
    job = seen.job
    if job.deleting:
        return Plan.nothing(job)  # owner references clean up
    if job.status.finished:
        return _clean_up(seen, now)
    if job.spec is None:
        return finished(
            seen, begun(seen, now), now, succeeded=False, reason=Reason.INVALID_SPEC, message=job.spec_error
        )

    gang = gang_of(seen, job.spec.nodes)
    edited = any(pod.spec_hash != spec_hash(job.spec) for pod in gang.current.values())
    if gang.all_succeeded and not edited:
        return _succeed(seen, gang, now)
    if job.spec.suspend:
        return _suspend(seen, gang, now)
    if edited:
        message = "the spec was edited while the job was suspended; its pods are replaced"
        return next_attempt(seen, now, phase=Phase.RESTARTING, reason=Reason.SPEC_CHANGED, message=message)
    if ends := _ends(seen, gang, now):  # one rank down is the whole gang down
        return _restart_or_fail(seen, job.spec, gang, ends, now)
    if gang.missing and not all(has_stopped(seen, pod) for pod in gang.old):
        return _wait_for_old_pods(seen, job.spec, gang, now)
    return _run(seen, job.spec, gang, now)


def _run(seen: Observed, spec: DDPJobSpec, gang: Gang, now: float) -> Plan:
    """Keep the gang whole and say where it stands."""
    status = begun(seen, now)
    image = spec.image or status.image or seen.trainer_image
    actions: list[Action] = [*ensure_service(seen.job, spec, seen.service)]
    actions += stop(seen, gang.old, SURVIVOR_GRACE_SECONDS)  # stragglers of a writer with an old view
    actions += _outdated_evidence(spec, status, gang)  # before the new pods, which a quota may have no room for
    actions += [create_pod(seen.job, spec, image, rank) for rank in gang.missing]

    shown = _running_status(seen, gang, _with_clocks(seen, status, gang, now), now)
    deadline = next_deadline(spec, shown)
    if deadline and deadline.at <= now:
        return _deadline_passed(seen, spec, shown, deadline.message, deadline.ends_job, now)
    questions: tuple[Question, ...] = ()
    if gang.missing:  # until the new gang is whole, the pods of the one that failed may still tell more of its end
        shown, logs = refined(seen, spec, shown, now)
        questions = (*logs, *node_questions(gang.old, now))
    overdue = next_overdue(gang.current.values(), now)
    times = [time for time in (deadline.at if deadline else None, overdue) if time is not None]
    wake_at = min(times, default=None)
    return Plan(status=shown, actions=tuple(actions), questions=questions, wake_at=wake_at)


def _with_clocks(seen: Observed, status: DDPJobStatus, gang: Gang, now: float) -> DDPJobStatus:
    """The status with the clocks of this attempt that have begun, and with the latest progress."""
    update: dict[str, object] = {"ready": f"{gang.num_up}/{gang.num_nodes}"}
    if status.attempt_start_time is None:
        update["attempt_start_time"] = rfc3339(now)
    if gang.all_scheduled and status.scheduled_time is None:
        update["scheduled_time"] = rfc3339(now)
    if gang.all_up and status.running_since is None:
        update["running_since"] = rfc3339(now)
    if seen.progress is not None:
        update["progress"] = seen.progress
    return status.model_copy(update=update)


def _running_status(seen: Observed, gang: Gang, status: DDPJobStatus, now: float) -> DDPJobStatus:
    created = not gang.missing
    if created and (gang.all_up or status.running_since):
        message = f"all {gang.num_nodes} pods run"
        if seen.job.spec is not None and seen.job.spec.checkpoint is None:
            message += "; without spec.checkpoint a restart begins at step 0"
        truths = {
            ConditionType.CREATED: True,
            ConditionType.RUNNING: True,
            ConditionType.RESTARTING: False,
            ConditionType.SUSPENDED: False,
        }
        return showing(seen, status, now, phase=Phase.RUNNING, reason=Reason.RUNNING, message=message, truths=truths)

    reason, message = explain(seen, gang)
    restarting = status.condition(ConditionType.RESTARTING)
    if failure := latest_failure(status):
        message = f"{message}; {failures.sentence(failure)}"
    truths = {ConditionType.CREATED: created, ConditionType.SUSPENDED: False}
    phase = Phase.RESTARTING if restarting else Phase.PENDING
    return showing(seen, status, now, phase=phase, reason=reason, message=message, truths=truths)


def _wait_for_old_pods(seen: Observed, spec: DDPJobSpec, gang: Gang, now: float) -> Plan:
    """Stop what is left of earlier attempts; nothing new starts while it may run."""
    alive = [pod for pod in gang.old if not has_stopped(seen, pod)]
    shown, logs = refined(seen, spec, begun(seen, now), now)
    failure = latest_failure(shown)
    # Without a failure the pods were suspended or are replaced: they, too, get time to save their work.
    orderly = failure is None or failure.reason == Reason.STOPPED_WITH_CHECKPOINT
    message = f"waiting for {len(alive)} old pods to stop, {alive[0].name} first"
    if failure is not None:
        message = f"{message}; {failures.sentence(failure)}"
    restarting = shown.condition(ConditionType.RESTARTING)
    shown = showing(
        seen,
        shown,
        now,
        phase=Phase.RESTARTING if restarting else Phase.PENDING,
        reason=failure.reason if failure else Reason.STOPPING,
        message=message,
        truths={ConditionType.SUSPENDED: False},
    )
    return Plan(
        status=shown,
        actions=stop(seen, alive, None if orderly else SURVIVOR_GRACE_SECONDS),
        questions=(*logs, *node_questions(gang.old, now)),
        wake_at=next_overdue(alive, now),
    )


def _suspend(seen: Observed, gang: Gang, now: float) -> Plan:
    """Stop everything, with each pod's own grace to save its work, and wait."""
    status = begun(seen, now)
    if gang.current or status.condition(_CREATED):
        message = "spec.suspend is set; the pods are stopped"
        return next_attempt(seen, now, phase=Phase.SUSPENDED, reason=Reason.SUSPENDED, message=message)
    alive = [pod for pod in gang.old if not has_stopped(seen, pod)]
    message = f"spec.suspend is set; {len(alive)} pods are still stopping" if alive else "spec.suspend is set"
    truths = {
        ConditionType.SUSPENDED: True,
        ConditionType.RESTARTING: False,
        ConditionType.RUNNING: False,
    }
    shown = showing(seen, status, now, phase=Phase.SUSPENDED, reason=Reason.SUSPENDED, message=message, truths=truths)
    return Plan(
        status=shown,
        actions=stop(seen, alive, None),
        questions=node_questions(gang.old, now),
        wake_at=next_overdue(alive, now),
    )


def _ends(seen: Observed, gang: Gang, now: float) -> tuple[End, ...]:
    """The ends that end the current attempt; none while it goes on."""
    ended = [failures.end_of(seen, pod, now) for pod in gang.current.values() if failures.has_ended(pod, now)]
    if not seen.job.status.condition(_CREATED):
        return tuple(ended)  # a pod that is missing has not been created yet
    gone = (
        failures.missing_end(rank, pod_name(seen.job.name, seen.job.status.attempt, rank), now) for rank in gang.missing
    )
    return (*ended, *gone)


def _restart_or_fail(seen: Observed, spec: DDPJobSpec, gang: Gang, ends: Sequence[End], now: float) -> Plan:
    """The attempt is over: begin the next, or end the job."""
    cause = failures.cause_of(ends)
    assert cause is not None, "there is an end"
    over = [pod for pod in gang.current.values() if failures.has_ended(pod, now)]
    logs = failures.wanted_logs(seen, over)
    questions: tuple[Question, ...] = (*logs, *node_questions(gang.current.values(), now))
    status = begun(seen, now)
    num_running = sum(pod.exit is None for pod in gang.current.values())
    if now < (settled := failures.settled_at(cause, num_running)):
        return Plan(status=status, questions=questions, wake_at=settled)

    failure = _recorded(seen, gang, cause, now)
    verdict = judge(spec, status.restarts, failure, now)
    # A restart does not wait for a log; what is final, or depends on an exit code in torchrun's table, does.
    if logs and (verdict.final or spec.restart.rules):
        return Plan(status=status, questions=questions)
    return replace(
        _carry_out(seen, status, failure, verdict, failures.sentence(failure), now),
        questions=() if verdict.final else questions,
    )


def _recorded(seen: Observed, gang: Gang, cause: End, now: float) -> Failure:
    failure = failures.record(cause, seen.job.status.attempt, now)
    if failure.reason != Reason.STOPPED_WITH_CHECKPOINT:
        return failure
    step = failures.saved_step(gang.current[0]) if 0 in gang.current else None
    return failure.model_copy(update={"checkpoint_step": step})


def _deadline_passed(
    seen: Observed, spec: DDPJobSpec, status: DDPJobStatus, message: str, ends_job: bool, now: float
) -> Plan:
    reason = Reason.DEADLINE_EXCEEDED
    if ends_job:
        return finished(seen, status, now, succeeded=False, reason=reason, message=message)
    failure = Failure(attempt=status.attempt, reason=reason, message=message, time=rfc3339(now))
    return _carry_out(seen, status, failure, judge(spec, status.restarts, failure, now), message, now)


def _carry_out(
    seen: Observed, status: DDPJobStatus, failure: Failure, verdict: Verdict, message: str, now: float
) -> Plan:
    """What the verdict on a failure says: the next attempt, or the end of the job."""
    if verdict.final is not None:
        ended = status.model_copy(update=remembering(status, failure))
        why = f"{message}; {verdict.why}"
        return finished(seen, ended, now, succeeded=False, reason=verdict.final, message=why)
    return next_attempt(
        seen,
        now,
        phase=Phase.RESTARTING,
        reason=failure.reason,
        message=message,
        restarts=verdict.restarts,
        failure=failure,
    )


def _succeed(seen: Observed, gang: Gang, now: float) -> Plan:
    """Every rank has ended well; rank 0's log holds the last progress."""
    first = gang.current[0]
    status = _with_clocks(seen, begun(seen, now), gang, now)
    if first.uid not in seen.logs:
        return Plan(status=seen.job.status, questions=(ReadLog(pod=first.name, uid=first.uid),))
    if last := latest_progress(seen.logs[first.uid]):
        status = status.model_copy(update={"progress": last})
    message = f"all {gang.num_nodes} ranks ended with exit code 0"
    return finished(seen, status, now, succeeded=True, reason=Reason.SUCCEEDED, message=message)


def _outdated_evidence(spec: DDPJobSpec, status: DDPJobStatus, gang: Gang) -> list[Action]:
    """Delete the pods of attempts that are no longer kept."""
    oldest_kept = status.attempt - spec.restart.keep_attempts
    return [
        DeletePod(name=pod.name, uid=pod.uid, grace_seconds=SURVIVOR_GRACE_SECONDS)
        for pod in gang.old
        if pod.attempt < oldest_kept and pod.deletion_deadline is None
    ]


def _clean_up(seen: Observed, now: float) -> Plan:
    """After the end nothing of the job runs; its failed pods stay until the job goes."""
    status = seen.job.status
    grace = None if status.reason == Reason.DEADLINE_EXCEEDED else SURVIVOR_GRACE_SECONDS
    actions = stop(seen, seen.pods, grace)
    ttl = seen.job.spec.ttl_seconds_after_finished if seen.job.spec else None
    if ttl is None or status.completion_time is None:
        return Plan(status=status, actions=actions)
    delete_at = epoch_seconds(status.completion_time) + ttl
    if delete_at > now:
        return Plan(status=status, actions=actions, wake_at=delete_at)
    return Plan(status=status, actions=(*actions, DeleteJob(name=seen.job.name, uid=seen.job.uid)))
