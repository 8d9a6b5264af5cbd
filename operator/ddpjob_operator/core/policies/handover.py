"""Between two attempts: the pods of earlier attempts stop, and a gang that failed in a row backs off."""

from collections.abc import Sequence

from ddpjob_operator.api.names import Reason, contract
from ddpjob_operator.core.decision import Advice, Stop, WaitToStart
from ddpjob_operator.core.failure.classes import ASKED_TO_STOP
from ddpjob_operator.core.failure.messages import failure_sentence
from ddpjob_operator.core.failure.restart import LAST_DELAY_SECONDS, SHORT_SECONDS
from ddpjob_operator.core.model import Pod
from ddpjob_operator.core.situation import Situation
from ddpjob_operator.core.stopping import (
    first_end_of_keeping,
    may_still_run,
    next_overdue,
    node_lookups,
    pod_terminating_too_long,
)
from ddpjob_operator.core.times import duration, epoch_seconds, rfc3339, soonest


def wait_for_earlier_attempts(situation: Situation) -> Advice:
    """Create no pod while one of an earlier attempt may still run, or while the delay of this attempt passes."""
    gang, now, failure = situation.gang, situation.now, situation.failure
    alive = may_still_run(situation.observed, gang.old, now)
    begins = starts_at(situation)
    if not gang.missing or not (alive or begins > now):
        return Advice()
    reason, message = _obstacle(situation, alive, begins)
    wake_ups = [next_overdue(alive, now), begins]
    if alive and failure is not None and failure.reason == Reason.HUNG:
        wake_ups.append(first_end_of_keeping(alive, epoch_seconds(failure.time)))
    return Advice(
        decision=WaitToStart(
            reason=reason,
            message=f"{message}; {failure_sentence(failure)}" if failure is not None else message,
            stop=_how_to_stop(situation),
        ),
        lookups=(*situation.latest_record.lookups, *node_lookups(situation.status, gang.old, now)),
        wake_at=soonest(wake_ups, now),
    )


def starts_at(situation: Situation) -> float:
    """From when the current attempt's pods may be created.

    A time too far ahead was written before a clock was set back, and is ignored.
    """
    text = None if situation.latest_record.retries_at_once else situation.status.retry_time
    at = epoch_seconds(text) if text else situation.now
    return at if at <= situation.now + 2 * LAST_DELAY_SECONDS else situation.now


def _how_to_stop(situation: Situation) -> Stop:
    """The way that fits why the attempt of the old pods ended."""
    failure = situation.failure
    if failure is None:
        # A gang that released the nodes of a part of it has nothing to save. Others have: they were replaced or suspended.
        return Stop.AT_ONCE if situation.status.give_backs else Stop.WITH_OWN_GRACE
    if failure.reason == Reason.HUNG:
        return Stop.AND_KEEP_LOGS
    # A rank was asked to stop, so the others may save their work, too. Its exit code need not show that: torchrun's is 1.
    can_save = failure.reason in ASKED_TO_STOP or failure.exit_code == contract.EXIT_CHECKPOINTED
    return Stop.WITH_OWN_GRACE if can_save else Stop.AT_ONCE


def _obstacle(situation: Situation, alive: Sequence[Pod], begins: float) -> tuple[str, str]:
    failure, restarts = situation.failure, situation.latest_record.restarts
    if stuck := pod_terminating_too_long(alive, situation.now):
        return Reason.TERMINATING_TOO_LONG, (
            f"pod {stuck.name} should have stopped on node {stuck.node}, which is not known to be lost: restart the"
            f" kubelet there, or taint the node with node.kubernetes.io/out-of-service once it is off"
        )
    if alive:
        what = f"pod {alive[0].name}" if len(alive) == 1 else f"{len(alive)} old pods, {alive[0].name} first,"
        return failure.reason if failure else Reason.STOPPING, f"waiting for {what} to stop"
    at = rfc3339(begins)
    if failure is not None and restarts.in_a_row > 1:
        return Reason.BACKING_OFF, f"{restarts.in_a_row} failures in a row: the next attempt starts at {at}"
    if failure is not None and restarts.short_in_a_row > 1:
        short = f"{restarts.short_in_a_row} attempts in a row ended within {duration(SHORT_SECONDS)} of running"
        return Reason.BACKING_OFF, f"{short}: the next attempt starts at {at}"
    return Reason.UNSCHEDULABLE, f"the gang has released the nodes of a part of its pods: it tries again at {at}"
