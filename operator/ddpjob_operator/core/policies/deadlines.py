"""Limits on what a gang may wait for.

queue: from the first pod's creation to all of them having a node; a gang that has at least minNodes then continues on these.
start: from there to all of them running; and as long for an API server that refuses pods. finish: from the first rank's
success to the last one's. active: all the time on nodes, over every attempt; neither queueing nor suspension counts. The
limit on missing progress is in `hang.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ddpjob_operator.api.names import Reason
from ddpjob_operator.api.status import MAX_TEXT_LENGTH, Failure
from ddpjob_operator.core.decision import Advice, Finish
from ddpjob_operator.core.failure.cause import global_rank
from ddpjob_operator.core.model import Pod
from ddpjob_operator.core.policies import partial_gang
from ddpjob_operator.core.policies.failed_attempt import fail
from ddpjob_operator.core.policies.obstacles import explain_wait, never_starts
from ddpjob_operator.core.situation import Situation
from ddpjob_operator.core.times import duration, rfc3339
from ddpjob_operator.core.untrusted import beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A deadline that has begun and may pass."""

    at: float
    """When it passes, in seconds since the epoch."""
    reason: Reason
    message: str
    """The message for when it has passed."""
    ends_job: bool
    """Whether it ends the job rather than the attempt."""
    late: Pod | None = None
    """The pod that it waits for, if it is one."""


def end_what_takes_too_long(situation: Situation) -> Advice:
    """End the attempt, or the job, when the first of its running limits has passed."""
    running = [*_to_start(situation), *_to_finish(situation), *_to_be_active(situation)]
    deadline = min(running, key=lambda deadline: deadline.at, default=None)
    if deadline is None or deadline.at > situation.now:
        return Advice(wake_at=deadline.at if deadline else None)
    if deadline.reason == Reason.QUEUE_DEADLINE and partial_gang.may_shrink(situation):
        return Advice(decision=partial_gang.shrink(situation, "queueSeconds"))
    if deadline.ends_job:
        return Advice(decision=Finish(succeeded=False, reason=deadline.reason, message=deadline.message))
    return Advice(
        decision=fail(situation, ended_by_operator(situation, deadline.reason, deadline.message, deadline.late))
    )


def ended_by_operator(situation: Situation, reason: Reason, message: str, culprit: Pod | None) -> Failure:
    """The record of an attempt whose pods have not ended by themselves."""
    quoted = beginning(message, MAX_TEXT_LENGTH)
    failure = Failure(attempt=situation.status.attempt, reason=reason, message=quoted, time=rfc3339(situation.now))
    if culprit is None:
        return failure
    of_pod = {"rank": culprit.rank, "pod": culprit.name, "node": culprit.node}
    return failure.model_copy(update={**of_pod, "global_rank": global_rank(situation.spec, culprit.rank, None)})


def _to_start(situation: Situation) -> Iterator[Deadline]:
    if situation.clocks.running is not None:
        return
    limits, clocks, observed = situation.spec.deadlines, situation.clocks, situation.observed
    reason, why = explain_wait(observed, situation.gang, situation.provider)
    if limits.queue_seconds is not None and clocks.scheduled is None:
        # A smaller attempt takes the nodes that the one before had, once the pods there have stopped.
        has_had_nodes = situation.status.shrunk_from is not None
        yield Deadline(
            at=(clocks.creation_began if has_had_nodes else clocks.queued) + limits.queue_seconds,
            reason=Reason.QUEUE_DEADLINE,
            message=(
                f"the gang did not get all its nodes within deadlines.queueSeconds"
                f" ({duration(limits.queue_seconds)}): {why}"
            ),
            ends_job=True,
        )
    refused = [why.since for why in observed.rejections.values() if why.is_on_purpose]
    never_ran = situation.status.active_seconds_before == 0  # a job of weeks waits for a webhook to come back
    if reason == Reason.POD_REJECTED and refused and never_ran:
        # Not before it was refused: a quota may have come first, for hours.
        yield Deadline(
            at=max(clocks.creation_began, min(refused)) + limits.start_seconds,
            reason=reason,
            message=f"{why}, for longer than deadlines.startSeconds ({duration(limits.start_seconds)})",
            ends_job=True,
        )
    if hopeless := never_starts(situation.gang):
        yield Deadline(
            at=clocks.creation_began,
            reason=Reason.IMAGE_PULL,
            message=f"the image can never be pulled: {hopeless}",
            ends_job=True,
        )
    if clocks.scheduled is not None:
        is_named = reason in (Reason.IMAGE_PULL, Reason.CONTAINER_CONFIG)
        yield Deadline(
            at=clocks.scheduled + limits.start_seconds,
            reason=reason if is_named else Reason.START_DEADLINE,
            message=f"{why}; deadlines.startSeconds is {duration(limits.start_seconds)}",
            ends_job=False,
            late=next(iter(situation.gang.starting), None),
        )


def _to_finish(situation: Situation) -> Iterator[Deadline]:
    late, first = situation.gang.unfinished, situation.gang.first_success
    if late and first is not None:
        limit = situation.spec.deadlines.finish_seconds
        yield Deadline(
            at=first + limit,
            reason=Reason.FINISH_DEADLINE,
            message=f"it still ran deadlines.finishSeconds ({duration(limit)}) after the first rank had succeeded",
            ends_job=False,
            late=late[0],
        )


def _to_be_active(situation: Situation) -> Iterator[Deadline]:
    limit, scheduled = situation.spec.deadlines.active_seconds, situation.clocks.scheduled
    if limit is not None and scheduled is not None:
        yield Deadline(
            at=scheduled + max(0, limit - situation.status.active_seconds_before),
            reason=Reason.ACTIVE_DEADLINE,
            message=f"the job was active for deadlines.activeSeconds ({duration(limit)})",
            ends_job=True,
        )
