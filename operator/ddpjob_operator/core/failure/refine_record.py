"""A better record of a failure, once its pods show more of what happened.

The first record is written as soon as the attempt is over, since the restart must not wait. Until the new gang runs, a
log may arrive, a node may turn out to be lost, and a survivor may show the cause that the first record only echoed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ddpjob_operator.api.names import Reason, contract
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import DDPJobStatus, Failure, Restarts
from ddpjob_operator.core.actions import ReadLog
from ddpjob_operator.core.failure import cause as failures
from ddpjob_operator.core.failure.cause import End
from ddpjob_operator.core.failure.class_of_end import DEADLINE_EXCEEDED, newest_pods, newly_saved_step
from ddpjob_operator.core.failure.classes import ECHOES, KINDS, TAKEN_AWAY, Kind
from ddpjob_operator.core.failure.restart import recount
from ddpjob_operator.core.model import NO_LOG, Observed, Pod
from ddpjob_operator.core.times import epoch_seconds

#: The operator itself ended these attempts, so how their pods end says nothing.
_ENDED_BY_OPERATOR = frozenset(
    {Reason.HUNG, Reason.START_DEADLINE, Reason.FINISH_DEADLINE, Reason.IMAGE_PULL, Reason.CONTAINER_CONFIG}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefinedRecord:
    """The failure that led to the current attempt, by the best evidence so far."""

    failure: Failure | None
    """None where something else led to it."""
    restarts: Restarts
    """The counters, corrected where the failure turned out not to count."""
    retries_at_once: bool = False
    """Whether it turned out to be no failure, so that there is nothing to back off from."""
    lookups: tuple[ReadLog, ...] = ()
    """The logs that could still improve the record."""


def refine_record(observed: Observed, spec: DDPJobSpec, now: float) -> RefinedRecord:
    """What is known by now of the failure that led to the current attempt."""
    status = observed.job.status
    failure = _latest_failure(status)
    if failure is None or failure.replaced or failure.reason in _ENDED_BY_OPERATOR or status.running_since:
        return RefinedRecord(failure=failure, restarts=status.restarts)
    over = [pod for pod in _last_pods(observed, failure.attempt) if _is_evidence(observed, pod, failure, now)]
    lookups = failures.wanted_logs(observed, over)
    better = _with_saved_step(observed, _with_better_cause(observed, failure, over, lookups, now))
    stopped_late = better != failure and better.checkpoint_step is not None
    return RefinedRecord(
        failure=better,
        restarts=recount(spec, status.restarts, failure, better),
        retries_at_once=stopped_late and status.restarts.short_in_a_row <= 1,
        lookups=lookups,
    )


def _last_pods(observed: Observed, attempt: int) -> list[Pod]:
    """The pods that the attempt had at its end and that still exist.

    A pod that was replaced earlier in the attempt explains only its own loss, so it is left out. Such a pod has a
    record of its own, which the status drops after many others, and its rank has a newer pod.
    """
    replaced = {record.pod for record in observed.job.status.attempts if record.replaced and record.attempt == attempt}
    newest = {pod.uid for pod in newest_pods((*observed.vanished, *observed.pods), attempt)}
    return [pod for pod in observed.pods if pod.uid in newest and pod.name not in replaced]


def _latest_failure(status: DDPJobStatus) -> Failure | None:
    failure = status.failure
    if failure is None:
        return None
    return failure if failure.attempt == status.attempt - (0 if failure.replaced else 1) else None


def _with_better_cause(
    observed: Observed, failure: Failure, over: Sequence[Pod], lookups: Sequence[ReadLog], now: float
) -> Failure:
    cause = failures.cause_of(failures.ends_of(observed, over, now))
    cause = cause and failures.with_early_success(cause, over)
    if cause is None or not _is_better(observed, failure, cause, over, lookups):
        return failure
    kept = {"time": failure.time, "checkpoint_step": failure.checkpoint_step}
    return failures.failure_of(observed, cause, failure.attempt, now).model_copy(update=kept)


def _is_better(
    observed: Observed, failure: Failure, cause: End, over: Sequence[Pod], lookups: Sequence[ReadLog]
) -> bool:
    """Whether the cause explains the attempt's end better than the record.

    In order of certainty: what the cluster did, what a program said of itself, what only echoes another rank's end.
    """
    by_cluster, was_by_cluster = KINDS[cause.reason] == Kind.UNCOUNTED, KINDS.get(failure.reason) == Kind.UNCOUNTED
    same_pod = cause.pod == failure.pod
    if was_by_cluster and not by_cluster:
        explains_more = False
    elif (
        same_pod
        and cause.reason in TAKEN_AWAY
        and (failure.exit_code is not None or failure.reason == Reason.INIT_FAILED)
    ):
        explains_more = False  # its program was seen to have ended before the cluster did anything to the pod
    elif same_pod and cause.reason == Reason.POD_DELETED:
        explains_more = False  # its end is known: the deletion is ours, or of an operator with an old view
    elif same_pod:
        explains_more = cause.reason != failure.reason or (bool(cause.message) and cause.message != failure.message)
    else:
        was_explained_elsewhere = failure.reason in ECHOES or failure.reason == Reason.STOPPED_WITH_CHECKPOINT
        explains_more = was_explained_elsewhere and not cause.is_echo and cause.reason != failure.reason
    log_is_unread = any(lookup.pod == cause.pod for lookup in lookups)
    log_is_gone = same_pod and any(observed.logs.get(pod.uid) == NO_LOG for pod in over if pod.name == cause.pod)
    return explains_more and not log_is_gone and (by_cluster or not log_is_unread)


def _with_saved_step(observed: Observed, failure: Failure) -> Failure:
    """A rank that stopped on request may end before rank 0 reports the step that it saved."""
    if failure.checkpoint_step is not None or failure.exit_code != contract.EXIT_CHECKPOINTED:
        return failure
    step = newly_saved_step(observed, failure.attempt)
    if step is None or KINDS.get(failure.reason) == Kind.UNCOUNTED:
        return failure.model_copy(update={"checkpoint_step": step})
    reason = Reason.STOPPED_WITH_CHECKPOINT
    return failure.model_copy(update={"checkpoint_step": step, "reason": reason, "message": ""})


def _is_evidence(observed: Observed, pod: Pod, failure: Failure, now: float) -> bool:
    """Whether the pod ended by itself or by the cluster, and not by our deletion."""
    if not failures.has_ended(pod, now):
        return False
    if pod.reason == DEADLINE_EXCEEDED and pod.active_deadline_seconds == 1 and pod.exit and pod.exit.code == 0:
        return False  # it had succeeded, and the operator ended its sidecars
    ended_by_cluster = bool(pod.disruption) or (pod.exit is None and pod.node in observed.nodes_gone)
    not_by_us = pod.deletion is None or pod.ended_before_deletion or pod.name == failure.pod
    # An operator deletes pods only after it has written the record. So a deletion that was seen before the record is
    # not its own. Both times are those of our clock, because other clocks may be wrong. The record of another operator
    # may reach us after its deletions, so nothing follows from the order there. The time of the record is cut to a
    # whole second.
    seen = pod.deletion.seen_while_current if pod.deletion else None
    is_ours = observed.begun_attempt == observed.job.status.attempt
    seen_before = is_ours and seen is not None and seen < epoch_seconds(failure.time)
    return ended_by_cluster or not_by_us or seen_before
