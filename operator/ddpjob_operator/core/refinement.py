"""A better record of a failure, once its pods have come to tell more.

The first record is written as soon as the attempt is over, since the restart must not wait. Until the new gang is whole a
log may arrive, a node may turn out to be lost, and a survivor may show the cause that the first record only echoed.
"""

from ddpjob_operator.api.names import Reason, contract
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import DDPJobStatus, Failure
from ddpjob_operator.core import failure as failures
from ddpjob_operator.core.attempts import remembering
from ddpjob_operator.core.failure import End
from ddpjob_operator.core.failure_classes import ECHOES, KINDS, Kind
from ddpjob_operator.core.failure_reason import newly_saved_step
from ddpjob_operator.core.model import Observed, Pod, ReadLog
from ddpjob_operator.core.restart import recounted
from ddpjob_operator.core.times import epoch_seconds

#: The operator itself ended these attempts, so how their pods end says nothing.
_OURS = frozenset(
    {Reason.HUNG, Reason.START_DEADLINE, Reason.FINISH_DEADLINE, Reason.IMAGE_PULL, Reason.CONTAINER_CONFIG}
)


def latest_failure(status: DDPJobStatus) -> Failure | None:
    """The failure that led to the current attempt; None if something else did."""
    failure = status.failure
    return failure if failure is not None and failure.attempt == status.attempt - 1 else None


def refined(
    seen: Observed, spec: DDPJobSpec, status: DDPJobStatus, now: float
) -> tuple[DDPJobStatus, tuple[ReadLog, ...]]:
    """The status with a better record of the latest failure, if there is one; and the logs to read for it."""
    failure = latest_failure(status)
    if failure is None or failure.reason in _OURS:
        return status, ()
    over = [pod for pod in seen.pods if pod.attempt == failure.attempt and _says_anything(seen, pod, failure, now)]
    questions = failures.wanted_logs(seen, over)
    unread = frozenset(question.pod for question in questions)
    better = _with_saved_step(seen, _with_better_cause(seen, failure, over, unread, now))
    if better == failure:
        return status, questions
    update = {**remembering(status, better), "restarts": recounted(spec, status.restarts, failure, better)}
    if better.checkpoint_step is not None:
        update["retry_time"] = None  # it was no failure, so nothing to back off from
    return status.model_copy(update=update), questions


def _with_better_cause(
    seen: Observed, failure: Failure, over: list[Pod], unread: frozenset[str], now: float
) -> Failure:
    cause = failures.cause_of(failures.end_of(seen, pod, now) for pod in over)
    if cause is None or not _tells_more(failure, cause):
        return failure
    if cause.pod in unread and KINDS[cause.reason] != Kind.UNCOUNTED:
        return failure  # what the program said may be better; what the cluster did needs no log
    if cause.pod == failure.pod and any(seen.logs.get(pod.uid) == "" for pod in over if pod.name == cause.pod):
        return failure  # its log could be read before, and cannot any more
    if cause.reason == Reason.POD_DELETED and cause.pod == failure.pod:
        return failure  # its end is known: the deletion that shows now is ours, or of an operator with an old view
    if KINDS.get(failure.reason) == Kind.UNCOUNTED and KINDS[cause.reason] != Kind.UNCOUNTED:
        return failure  # the cluster ended it, whatever the program made of that
    kept = {"time": failure.time, "checkpoint_step": failure.checkpoint_step}
    return failures.record(seen, cause, failure.attempt, now).model_copy(update=kept)


def _with_saved_step(seen: Observed, failure: Failure) -> Failure:
    """A rank that stopped on request may end before rank 0 says what it saved."""
    if failure.checkpoint_step is not None or failure.exit_code != contract.EXIT_CHECKPOINTED:
        return failure
    step = newly_saved_step(seen, failure.attempt)
    if step is None or KINDS.get(failure.reason) == Kind.UNCOUNTED:
        return failure.model_copy(update={"checkpoint_step": step})
    reason = Reason.STOPPED_WITH_CHECKPOINT
    return failure.model_copy(update={"checkpoint_step": step, "reason": reason, "message": ""})


def _says_anything(seen: Observed, pod: Pod, failure: Failure, now: float) -> bool:
    """Whether its end is its own: survivors die of our deletion, unless they had ended before or the cluster ended them."""
    if not failures.has_ended(pod, now):
        return False
    ended_by_cluster = bool(pod.disruption) or (pod.exit is None and pod.node in seen.nodes_gone)
    not_by_us = pod.deletion_deadline is None or pod.ended_before_deletion or pod.name == failure.pod
    # We delete after the record alone. By our own clock, since the API server's may be seconds off it; and where another
    # operator's record may still be on its way to us, by the whole second that its time is cut to.
    seen_before = pod.deleted_while_current is not None and pod.deleted_while_current < epoch_seconds(failure.time)
    return ended_by_cluster or not_by_us or seen_before


def _tells_more(failure: Failure, cause: End) -> bool:
    if cause.pod != failure.pod:
        explained = failure.reason in ECHOES or failure.reason == Reason.STOPPED_WITH_CHECKPOINT
        return explained and not cause.is_echo and cause.reason != failure.reason
    return cause.reason != failure.reason or (bool(cause.words) and cause.words != failure.message)
