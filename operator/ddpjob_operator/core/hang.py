"""A gang that no longer gets on: rank 0 prints no new step and no new phase.

Only the log tells, so the clock is the reader's: it runs while the log can be read and shows nothing new, and an operator
that restarts begins anew. A program that prints no progress lines is never said to hang.
"""

from dataclasses import dataclass

from ddpjob_operator.api.names import contract
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.gang import Gang
from ddpjob_operator.core.model import Observed
from ddpjob_operator.core.times import duration, epoch_seconds

#: A limit that is near is looked at again after this long, since the log is read every few seconds only.
LOOK_AGAIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """How long rank 0 may go on saying nothing new."""

    limit_seconds: float
    hung: bool
    wake_at: float


def silence_of(seen: Observed, spec: DDPJobSpec, status: DDPJobStatus, gang: Gang, now: float) -> Silence | None:
    """The silence that is being watched; None where none is. It is nobody's fault before all ranks run."""
    first = gang.current.get(0)
    limit = _limit_seconds(seen, spec)
    if limit is None or first is None or first.exit is not None or status.running_since is None:
        return None
    left = limit - min(seen.silent_seconds, now - epoch_seconds(status.running_since))
    return Silence(limit_seconds=limit, hung=left <= 0, wake_at=now + max(left, LOOK_AGAIN_SECONDS))


def _limit_seconds(seen: Observed, spec: DDPJobSpec) -> float | None:
    hang_seconds = spec.deadlines.hang_seconds
    if seen.progress is None:  # the trainer must print a first line; another program need not
        return spec.deadlines.start_seconds + hang_seconds if spec.trainer else None
    return hang_seconds * (contract.SLOW_PHASE_FACTOR if seen.progress.phase in contract.SLOW_PHASES else 1)


def words(seen: Observed, limit_seconds: float) -> str:
    """What rank 0 did not do."""
    progress = seen.progress
    if progress is None:
        said = f"not one progress line for {duration(limit_seconds)} (deadlines.startSeconds and hangSeconds)"
    else:
        phase = f" ({progress.phase})" if progress.phase else ""
        said = f"nothing after step {progress.step}{phase} for {duration(limit_seconds)} (deadlines.hangSeconds)"
    stacks = ", with their stacks in the logs" if seen.job.spec and seen.job.spec.trainer else ""
    return f"it said {said}; the pods are kept{stacks}"
