"""A gang that makes no progress any more: rank 0 prints no new step and no new phase.

Only the log shows it, so the clock is the reader's: it runs while the log can be read and shows nothing new, and an
operator that restarts begins to count again. A program that prints no progress lines never counts as hung.
"""

from ddpjob_operator.api.names import Reason, contract
from ddpjob_operator.api.status import Progress
from ddpjob_operator.core.decision import Advice
from ddpjob_operator.core.policies.deadlines import ended_by_operator
from ddpjob_operator.core.policies.failed_attempt import fail
from ddpjob_operator.core.situation import Situation
from ddpjob_operator.core.times import duration

#: A limit that is near is checked again after this long, since the log is read every few seconds only.
CHECK_AGAIN_SECONDS = 2.0


def end_what_makes_no_progress(situation: Situation) -> Advice:
    """End the attempt once rank 0 has printed nothing new for too long, counted from when all ranks ran."""
    first, running = situation.gang.current.get(0), situation.clocks.running
    limit = _limit_seconds(situation)
    if limit is None or first is None or first.exit is not None or running is None:
        return Advice()
    left = limit - min(situation.observed.silent_seconds, situation.now - running)
    if left > 0:
        return Advice(wake_at=situation.now + max(left, CHECK_AGAIN_SECONDS))
    return Advice(
        decision=fail(situation, ended_by_operator(situation, Reason.HUNG, _message(situation, limit), first))
    )


def _limit_seconds(situation: Situation) -> float | None:
    limits, progress = situation.spec.deadlines, situation.observed.progress
    if progress is None:  # the trainer must print a first line; another program need not
        return limits.start_seconds + limits.hang_seconds if situation.spec.trainer else None
    if _is_past_last_step(progress):
        return limits.finish_seconds
    return limits.hang_seconds * (contract.SLOW_PHASE_FACTOR if progress.phase in contract.SLOW_PHASES else 1)


def _is_past_last_step(progress: Progress) -> bool:
    """Whether no further step follows: the program may upload its model or evaluate it, and prints nothing new."""
    return progress.total_steps is not None and progress.step >= progress.total_steps > 0


def _message(situation: Situation, limit_seconds: float) -> str:
    """The message: which progress is missing, and for how long."""
    progress = situation.observed.progress
    if progress is None:
        shows = f"no progress line for {duration(limit_seconds)} (deadlines.startSeconds and hangSeconds)"
    else:
        phase = f" ({progress.phase})" if progress.phase else ""
        which, limit = (
            ("the last step, ", "finishSeconds") if _is_past_last_step(progress) else ("step ", "hangSeconds")
        )
        shows = f"no progress after {which}{progress.step}{phase} for {duration(limit_seconds)} (deadlines.{limit})"
    stacks = ", with the Python stacks in their logs" if situation.spec.trainer else ""
    return f"the log of rank 0 shows {shows}; the pods are kept{stacks}"
