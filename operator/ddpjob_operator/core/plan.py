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
from ddpjob_operator.core.attempts import begun, finished, next_attempt, remembering
from ddpjob_operator.core.blame import avoided_nodes
from ddpjob_operator.core.deadlines import Deadline, next_deadline
from ddpjob_operator.core.failure import End
from ddpjob_operator.core.failure_words import sentence
from ddpjob_operator.core.gang import Gang, gang_of
from ddpjob_operator.core.give_back import gives_back_at, pause_seconds
from ddpjob_operator.core.handover import alive_old_pods, starts_at, suspend, wait_to_start
from ddpjob_operator.core.hang import silence_of
from ddpjob_operator.core.hang import words as words_of_hang
from ddpjob_operator.core.model import (
    Action,
    DeleteJob,
    DeletePod,
    DeletePods,
    Observed,
    Plan,
    Pod,
    Question,
    ReadLog,
)
from ddpjob_operator.core.pods import create_pod, pod_name, spec_hash
from ddpjob_operator.core.progress import latest_progress
from ddpjob_operator.core.refinement import refined
from ddpjob_operator.core.restart import Verdict, judge
from ddpjob_operator.core.running import finishing_at, quiet_at, running_status, with_clocks
from ddpjob_operator.core.service import ensure_service
from ddpjob_operator.core.stopping import (
    SURVIVOR_GRACE_SECONDS,
    keeps_until,
    next_overdue,
    node_questions,
    stop,
    stop_and_keep,
)
from ddpjob_operator.core.times import epoch_seconds, rfc3339, soonest
from ddpjob_operator.core.waiting import QUIET_START_SECONDS, warning_question

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
    wanted_hash = spec_hash(job.spec)
    edited = any(pod.spec_hash not in ("", wanted_hash) for pod in gang.current.values())
    if gang.all_succeeded and not edited:
        return _succeed(seen, gang, now)
    if job.spec.suspend:
        return suspend(seen, gang, now)
    if edited:
        message = "the spec was edited while the job was suspended; its pods are replaced"
        return next_attempt(seen, now, phase=Phase.RESTARTING, reason=Reason.SPEC_CHANGED, message=message)
    if ends := _ends(seen, gang, now):  # one rank down is the whole gang down
        return _restart_or_fail(seen, job.spec, gang, ends, now)
    if gang.missing and (alive_old_pods(seen, gang, now) or starts_at(job.status, now) > now):
        return wait_to_start(seen, job.spec, gang, now)
    return _run(seen, job.spec, gang, now)


def _run(seen: Observed, spec: DDPJobSpec, gang: Gang, now: float) -> Plan:
    """Keep the gang whole, say where it stands, and end what takes too long."""
    status = begun(seen, now)
    logs: tuple[ReadLog, ...] = ()
    if not status.running_since:
        # Until the new gang runs, the pods of the one that failed may still tell more of its end.
        status, logs = refined(seen, spec, status, now)
    shown = running_status(seen, gang, with_clocks(seen, status, gang, now), now)

    deadline = next_deadline(seen, spec, shown, gang)
    if deadline and deadline.at <= now:
        return _deadline_passed(seen, spec, shown, deadline, now)
    silence = silence_of(seen, spec, shown, gang, now)
    if silence and silence.hung:
        return _fail(seen, spec, shown, Reason.HUNG, words_of_hang(seen, silence.limit_seconds), now, gang.current[0])
    gives_back = gives_back_at(seen, shown, gang)
    if gives_back and gives_back <= now:
        return _give_back(seen, gang, now)

    placed_at = epoch_seconds(shown.scheduled_time) if shown.scheduled_time and not shown.running_since else None
    warning = warning_question(gang, placed_at, now)
    nodes = node_questions(gang.current.values() if shown.running_since else (*gang.current.values(), *gang.old), now)
    times = (
        deadline.at if deadline else None,
        silence.wake_at if silence else None,
        gives_back,
        finishing_at(gang),
        quiet_at(seen, shown),
        placed_at and placed_at + QUIET_START_SECONDS,
        next_overdue(list(gang.current.values()), now),
    )
    return Plan(
        status=shown,
        actions=_keep_whole(seen, spec, status, gang, now),
        questions=(*logs, *nodes, *([warning] if warning else ())),
        wake_at=soonest(times, now),
    )


def _keep_whole(seen: Observed, spec: DDPJobSpec, status: DDPJobStatus, gang: Gang, now: float) -> tuple[Action, ...]:
    """The Service that finds rank 0, no pod of an earlier attempt but kept evidence, and every pod of this one."""
    image = spec.image or status.image or seen.trainer_image
    avoided = avoided_nodes(status)
    return (
        *ensure_service(seen.job, spec, seen.service),
        *stop(seen, gang.old, SURVIVOR_GRACE_SECONDS, now),  # stragglers of a writer with an old view
        *_outdated_evidence(spec, status, gang),  # before the new pods, which a quota may have no room for
        *(create_pod(seen.job, spec, image, rank, avoided) for rank in gang.missing),
    )


def _ends(seen: Observed, gang: Gang, now: float) -> tuple[End, ...]:
    """The ends that end the current attempt; none while it goes on."""
    ended = [failures.end_of(seen, pod, now) for pod in gang.current.values() if failures.has_ended(pod, now)]
    if not seen.job.status.condition(_CREATED):
        return tuple(ended)  # a pod that is missing has not been created yet
    names = {rank: pod_name(seen.job.name, seen.job.status.attempt, rank) for rank in gang.missing}
    return (*ended, *(failures.missing_end(seen, rank, name, now) for rank, name in names.items()))


def _restart_or_fail(seen: Observed, spec: DDPJobSpec, gang: Gang, ends: Sequence[End], now: float) -> Plan:
    """The attempt is over: begin the next, or end the job."""
    cause = failures.cause_of(ends)
    assert cause is not None, "there is an end"
    over = [pod for pod in gang.current.values() if failures.has_ended(pod, now)]
    logs = failures.wanted_logs(seen, over)
    questions: tuple[Question, ...] = (*logs, *node_questions(gang.current.values(), now))
    status = begun(seen, now)
    num_running = sum(pod.exit is None for pod in gang.current.values())
    settled = failures.settled_at(cause, num_running)
    if cause.seen <= now < settled:  # an end in the future: the clock was set back, nobody knows how long ago
        return Plan(status=status, questions=questions, wake_at=settled)

    unplaced = any(pod.node is None for pod in gang.current.values())
    if cause.is_echo and unplaced:  # ranks with a place have waited too long for those without
        return _give_back(seen, gang, now)
    failure = failures.record(seen, cause, seen.job.status.attempt, now)
    verdict = judge(seen.job, spec, status, failure, now)
    # A restart does not wait for a log; what is final, or depends on an exit code in torchrun's table, does.
    if logs and (verdict.final or spec.restart.rules):
        return Plan(status=status, questions=questions)
    return replace(
        _carry_out(seen, status, failure, verdict, sentence(failure), now),
        questions=() if verdict.final else questions,
    )


def _deadline_passed(seen: Observed, spec: DDPJobSpec, status: DDPJobStatus, deadline: Deadline, now: float) -> Plan:
    if deadline.ends_job:
        return finished(seen, status, now, succeeded=False, reason=deadline.reason, message=deadline.message)
    return _fail(seen, spec, status, deadline.reason, deadline.message, now, deadline.late)


def _fail(
    seen: Observed,
    spec: DDPJobSpec,
    status: DDPJobStatus,
    reason: Reason,
    message: str,
    now: float,
    culprit: Pod | None = None,
) -> Plan:
    """End an attempt whose pods have not ended by themselves."""
    failure = Failure(attempt=status.attempt, reason=reason, message=message, time=rfc3339(now))
    if culprit is not None:
        failure = failure.model_copy(update={"rank": culprit.rank, "pod": culprit.name, "node": culprit.node})
    verdict = judge(seen.job, spec, status, failure, now)
    return _carry_out(seen, status, failure, verdict, sentence(failure), now)


def _give_back(seen: Observed, gang: Gang, now: float) -> Plan:
    """Give the places of a part of the gang to others for a moment."""
    message = f"{gang.num_placed} of {gang.num_nodes} pods had a node and the rest found none: they are given back"
    return next_attempt(
        seen,
        now,
        phase=Phase.PENDING,
        reason=Reason.GANG_GIVEN_BACK,
        message=message,
        delay_seconds=pause_seconds(seen.job, seen.job.status),
        keeps_place_in_queue=True,
    )


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
        delay_seconds=verdict.delay_seconds,
        restarts=verdict.restarts,
        failure=failure,
    )


def _succeed(seen: Observed, gang: Gang, now: float) -> Plan:
    """Every rank has ended well; rank 0's log holds the last progress."""
    first = gang.current[0]
    status = with_clocks(seen, begun(seen, now), gang, now)
    if first.uid not in seen.logs:
        return Plan(status=seen.job.status, questions=(ReadLog(pod=first.name, uid=first.uid),))
    if last := latest_progress(seen.logs[first.uid]):
        status = status.model_copy(update={"progress": last})
    message = f"all {gang.num_nodes} ranks ended with exit code 0"
    return finished(seen, status, now, succeeded=True, reason=Reason.SUCCEEDED, message=message)


def _outdated_evidence(spec: DDPJobSpec, status: DDPJobStatus, gang: Gang) -> list[DeletePod]:
    """Delete the pods of attempts that are no longer kept."""
    oldest_kept = status.attempt - spec.restart.keep_attempts
    return [
        DeletePod(name=pod.name, uid=pod.uid, grace_seconds=SURVIVOR_GRACE_SECONDS)
        for pod in gang.old
        if pod.attempt < oldest_kept and pod.all_ended and pod.deletion_deadline is None
    ]


def _clean_up(seen: Observed, now: float) -> Plan:
    """After the end nothing of the job runs; its failed pods stay until the job goes."""
    status = seen.job.status
    grace = None if status.reason == Reason.ACTIVE_DEADLINE else SURVIVOR_GRACE_SECONDS
    actions: tuple[Action, ...] = stop(seen, seen.pods, grace, now)
    times = [next_overdue(seen.pods, now)]
    if status.reason == Reason.HUNG and status.completion_time:
        current = [pod for pod in seen.pods if pod.attempt == status.attempt]
        others = [pod for pod in seen.pods if pod.attempt != status.attempt]
        since = epoch_seconds(status.completion_time)
        actions = (*stop_and_keep(seen, current, since, now), *stop(seen, others, grace, now))
        times.append(keeps_until([pod for pod in current if not pod.all_ended], since))
    questions = node_questions(seen.pods, now)
    wake_at = soonest(times, now)
    ttl = seen.job.spec.ttl_seconds_after_finished if seen.job.spec else None
    if ttl is None or status.completion_time is None:
        return Plan(status=status, actions=actions, questions=questions, wake_at=wake_at)
    delete_at = epoch_seconds(status.completion_time) + ttl
    if delete_at > now:
        wake_at = min(delete_at, wake_at or delete_at)
        return Plan(status=status, actions=actions, questions=questions, wake_at=wake_at)
    # The garbage collector would delete them as well, but one by one and at its own slow pace.
    collection = (DeletePods(attempt=None),) if len(seen.pods) > 1 else ()
    return Plan(status=status, actions=(*collection, DeleteJob(name=seen.job.name, uid=seen.job.uid)))
