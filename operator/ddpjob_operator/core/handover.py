"""Between two attempts: the old pods stop, a gang that failed in a row backs off, a suspended job waits."""

from ddpjob_operator.api.names import ConditionType, Phase, Reason, contract
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import DDPJobStatus, Failure
from ddpjob_operator.core.attempts import begun, next_attempt, showing
from ddpjob_operator.core.failure_words import sentence
from ddpjob_operator.core.gang import Gang
from ddpjob_operator.core.model import Action, Observed, Plan, Pod
from ddpjob_operator.core.refinement import latest_failure, refined
from ddpjob_operator.core.restart import LAST_DELAY_SECONDS
from ddpjob_operator.core.stopping import (
    SURVIVOR_GRACE_SECONDS,
    has_stopped,
    keeps_until,
    next_overdue,
    node_questions,
    stop,
    stop_and_keep,
    stop_in_order,
    too_long,
)
from ddpjob_operator.core.times import epoch_seconds, soonest


def alive_old_pods(seen: Observed, gang: Gang, now: float) -> list[Pod]:
    """Pods of earlier attempts that may still run."""
    return [pod for pod in gang.old if not has_stopped(seen, pod, now)]


def starts_at(status: DDPJobStatus, now: float) -> float:
    """From when the current attempt's pods may be created. A time too far ahead was written before a clock was set back."""
    at = epoch_seconds(status.retry_time) if status.retry_time else now
    return at if at <= now + 2 * LAST_DELAY_SECONDS else now


def wait_to_start(seen: Observed, spec: DDPJobSpec, gang: Gang, now: float) -> Plan:
    """Stop what is left of earlier attempts, and let the back-off pass; nothing new starts before."""
    alive = alive_old_pods(seen, gang, now)
    shown, logs = refined(seen, spec, begun(seen, now), now)
    failure = latest_failure(shown)
    restarting = shown.condition(ConditionType.RESTARTING)
    reason, message = _what_it_waits_for(shown, alive, failure, now)
    shown = showing(
        seen,
        shown,
        now,
        phase=Phase.RESTARTING if restarting else Phase.PENDING,
        reason=reason,
        message=f"{message}; {sentence(failure)}" if failure else message,
        truths={ConditionType.SUSPENDED: False},
    )
    times = [next_overdue(alive, now), starts_at(shown, now)]
    if alive and failure is not None and failure.reason == Reason.HUNG:
        times.append(keeps_until(alive, epoch_seconds(failure.time)))
    return Plan(
        status=shown,
        actions=_stop(seen, gang, alive, shown, failure, now),
        questions=(*logs, *node_questions(gang.old, now)),
        wake_at=soonest(times, now),
    )


def suspend(seen: Observed, gang: Gang, now: float) -> Plan:
    """Stop everything, with each pod's own grace to save its work, and wait."""
    status = begun(seen, now)
    if gang.current or status.condition(ConditionType.CREATED):
        message = "spec.suspend is set; the pods are stopped"
        return next_attempt(seen, now, phase=Phase.SUSPENDED, reason=Reason.SUSPENDED, message=message)
    # It leaves the queue, whose clocks begin anew when it is resumed.
    status = status.model_copy(
        update={"attempt_start_time": None, "queued_since": None, "retry_time": None, "give_backs": 0}
    )
    alive = alive_old_pods(seen, gang, now)
    message = f"spec.suspend is set; pods that are still stopping: {len(alive)}" if alive else "spec.suspend is set"
    truths = {
        ConditionType.SUSPENDED: True,
        ConditionType.RESTARTING: False,
        ConditionType.RUNNING: False,
    }
    shown = showing(seen, status, now, phase=Phase.SUSPENDED, reason=Reason.SUSPENDED, message=message, truths=truths)
    return Plan(
        status=shown,
        actions=(*stop_in_order(seen, alive, now), *_release_lost(seen, gang, now)),
        questions=node_questions(gang.old, now),
        wake_at=next_overdue(alive, now),
    )


def _what_it_waits_for(status: DDPJobStatus, alive: list[Pod], failure: Failure | None, now: float) -> tuple[str, str]:
    if stuck := too_long(alive, now):
        return Reason.TERMINATING_TOO_LONG, (
            f"pod {stuck.name} outlives its deletion on node {stuck.node}, which is not known to be lost: restart its"
            f" kubelet, or taint the node with node.kubernetes.io/out-of-service once it is off"
        )
    if alive:
        what = f"pod {alive[0].name}" if len(alive) == 1 else f"{len(alive)} old pods, {alive[0].name} first,"
        return failure.reason if failure else Reason.STOPPING, f"waiting for {what} to stop"
    if status.restarts.in_a_row > 1 and failure:
        return (
            Reason.BACKING_OFF,
            f"{status.restarts.in_a_row} failures in a row: it starts again at {status.retry_time}",
        )
    return Reason.UNSCHEDULABLE, f"its places are given back: it asks again at {status.retry_time}"


def _stop(
    seen: Observed, gang: Gang, alive: list[Pod], status: DDPJobStatus, failure: Failure | None, now: float
) -> tuple[Action, ...]:
    """What stops the old pods, in the way that fits why their attempt ended."""
    lost = _release_lost(seen, gang, now)
    if failure is None:
        gave_back = status.give_backs > 0  # nothing to save; else suspended or replaced, with time to save
        return (
            *(stop(seen, alive, SURVIVOR_GRACE_SECONDS, now) if gave_back else stop_in_order(seen, alive, now)),
            *lost,
        )
    if failure.reason == Reason.HUNG:
        return (*stop_and_keep(seen, alive, epoch_seconds(failure.time), now), *lost)
    orderly = failure.exit_code == contract.EXIT_CHECKPOINTED  # whoever asked for it, the others save as well
    return (*stop(seen, alive, None if orderly else SURVIVOR_GRACE_SECONDS, now), *lost)


def _release_lost(seen: Observed, gang: Gang, now: float) -> tuple[Action, ...]:
    """Remove the objects of pods that count as stopped since their node is lost."""
    return stop(
        seen, (pod for pod in gang.old if pod.deletion_deadline is not None and has_stopped(seen, pod, now)), None, now
    )
