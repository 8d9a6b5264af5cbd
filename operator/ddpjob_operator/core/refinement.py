"""A better record of a failure, once its pods have come to tell more.

The first record is written as soon as the attempt is over, since the restart must not wait. Until the new gang is whole a
log may arrive, a node may turn out to be lost, and a survivor may show the cause that the first record only echoed.
"""

from ddpjob_operator.api.names import Reason
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import DDPJobStatus, Failure
from ddpjob_operator.core import failure as failures
from ddpjob_operator.core.attempts import remembering
from ddpjob_operator.core.failure import End
from ddpjob_operator.core.model import Observed, Pod, ReadLog
from ddpjob_operator.core.restart import recounted


def latest_failure(status: DDPJobStatus) -> Failure | None:
    """The failure that led to the current attempt; None if something else did."""
    failure = status.failure
    return failure if failure is not None and failure.attempt == status.attempt - 1 else None


def refined(
    seen: Observed, spec: DDPJobSpec, status: DDPJobStatus, now: float
) -> tuple[DDPJobStatus, tuple[ReadLog, ...]]:
    """The status with a better record of the latest failure, if there is one; and the logs to read for it."""
    failure = latest_failure(status)
    if failure is None:
        return status, ()
    over = [pod for pod in seen.pods if pod.attempt == failure.attempt and _says_anything(pod, failure, now)]
    cause = failures.cause_of(failures.end_of(seen, pod, now) for pod in over)
    questions = failures.wanted_logs(seen, over)
    if cause is None or not _tells_more(failure, cause):
        return status, questions
    kept = {"time": failure.time, "checkpoint_step": failure.checkpoint_step}
    better = failures.record(cause, failure.attempt, now).model_copy(update=kept)
    counts = recounted(spec, status.restarts, failure, better)
    return status.model_copy(update={**remembering(status, better), "restarts": counts}), questions


def _says_anything(pod: Pod, failure: Failure, now: float) -> bool:
    """Whether its end is its own: survivors die of our deletion, unless they had an exit code to give."""
    by_itself = pod.exit is not None and pod.exit.signal is None
    return failures.has_ended(pod, now) and (pod.deletion_deadline is None or pod.name == failure.pod or by_itself)


def _tells_more(failure: Failure, cause: End) -> bool:
    if cause.pod != failure.pod:
        return failure.reason == Reason.COLLECTIVE_ERROR and not cause.is_echo
    return bool(cause.words) and (cause.words, cause.reason) != (failure.message, failure.reason)
