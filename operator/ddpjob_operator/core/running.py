"""The status of a gang that is wanted: its clocks, how far it is, and what it waits for."""

from typing import Any

from ddpjob_operator.api.names import ConditionType, Phase, Reason
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.attempts import showing
from ddpjob_operator.core.blame import avoided_nodes
from ddpjob_operator.core.failure_words import sentence
from ddpjob_operator.core.gang import Gang
from ddpjob_operator.core.model import Observed
from ddpjob_operator.core.refinement import latest_failure
from ddpjob_operator.core.time_spent import accounted
from ddpjob_operator.core.times import duration, epoch_seconds, rfc3339
from ddpjob_operator.core.waiting import explain, words_of_deletion

#: Ranks of one job end a moment apart; only what takes longer is told.
FINISHING_SECONDS = 30.0
#: A program that prints progress lines has printed one by now.
QUIET_SECONDS = 120.0


def with_clocks(seen: Observed, status: DDPJobStatus, gang: Gang, now: float) -> DDPJobStatus:
    """The status with the clocks of this attempt that have begun, and with the latest progress."""
    update: dict[str, Any] = {}
    if status.attempt_start_time is None:
        update |= {"attempt_start_time": rfc3339(now), "retry_time": None}
        update["queued_since"] = status.queued_since or rfc3339(now)
    if gang.all_scheduled and status.scheduled_time is None:
        update |= {"scheduled_time": rfc3339(now), "give_backs": 0}
    if gang.all_up and status.running_since is None:
        update["running_since"] = rfc3339(now)
    if seen.progress is not None and seen.progress != status.progress:
        update["progress"] = seen.progress
        if _has_saved(status, seen.progress.checkpoint_step):
            update["checkpoint_time"] = rfc3339(now)
    if update:  # what the job was doing until now, before the clocks say otherwise
        status = accounted(status, now)
    return status.model_copy(update={**update, "ready": f"{gang.num_up}/{gang.num_nodes}"})


def running_status(seen: Observed, gang: Gang, status: DDPJobStatus, now: float) -> DDPJobStatus:
    """The status of a gang that is being created, is starting, or runs."""
    created = not gang.missing
    if created and (gang.all_up or status.running_since):
        reason, message = _as_it_runs(seen, status, gang, now)
        truths = {
            ConditionType.CREATED: True,
            ConditionType.RUNNING: True,
            ConditionType.RESTARTING: False,
            ConditionType.SUSPENDED: False,
        }
        return showing(seen, status, now, phase=Phase.RUNNING, reason=reason, message=message, truths=truths)

    reason, message = explain(seen, gang)
    restarting = status.condition(ConditionType.RESTARTING)
    if failure := latest_failure(status):
        message = f"{message}; {sentence(failure)}"
    if avoided := avoided_nodes(status):
        message = f"{message}; it avoids {', '.join(avoided)}, blamed for failures before"
    truths = {ConditionType.CREATED: created, ConditionType.SUSPENDED: False}
    phase = Phase.RESTARTING if restarting else Phase.PENDING
    return showing(seen, status, now, phase=phase, reason=reason, message=message, truths=truths)


def finishing_at(gang: Gang) -> float | None:
    """From when it is told that some ranks have ended well and others run on."""
    first = gang.first_success
    return None if first is None or gang.all_succeeded else first + FINISHING_SECONDS


def quiet_at(seen: Observed, status: DDPJobStatus) -> float | None:
    """When it is told that a program of the user's prints no progress lines."""
    is_trainer = seen.job.spec is not None and seen.job.spec.trainer is not None
    if is_trainer or seen.progress or status.progress or status.running_since is None:
        return None
    return epoch_seconds(status.running_since) + QUIET_SECONDS


def _as_it_runs(seen: Observed, status: DDPJobStatus, gang: Gang, now: float) -> tuple[Reason, str]:
    spec = seen.job.spec
    assert spec is not None, "only a job with a valid spec has a gang"
    at = finishing_at(gang)
    if at is not None and at <= now:
        done = gang.num_nodes - len(gang.unfinished)
        pod = gang.unfinished[0]
        return Reason.FINISHING, (
            f"{done} of {gang.num_nodes} ranks have ended well, rank {pod.rank} (pod {pod.name}, node {pod.node}) runs on;"
            f" deadlines.finishSeconds is {duration(spec.deadlines.finish_seconds)}"
        )
    if deletion := words_of_deletion(gang.unfinished):
        return Reason.RUNNING, deletion
    message = f"all {gang.num_nodes} pods run" if gang.num_nodes > 1 else "the pod runs"
    if failure := latest_failure(seen.job.status):
        message += f" in attempt {failure.attempt + 1}. Before: {sentence(failure)}"
    if spec.checkpoint is None:
        message += "; without spec.checkpoint a restart begins at step 0"
    at = quiet_at(seen, status)
    if at is not None and at <= now:
        message += "; the program prints no progress lines, so hangs are not watched for"
    return Reason.RUNNING, message


def _has_saved(status: DDPJobStatus, step: int | None) -> bool:
    """Whether this checkpoint is newer than the one that the status knows."""
    known = status.progress.checkpoint_step if status.progress else None
    return step is not None and (known is None or step > known)
