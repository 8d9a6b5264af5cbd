"""What a failure leads to: the next attempt, counted or not, at once or later, or the end of the job."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddpjob_operator.api.names import Reason
from ddpjob_operator.api.spec import DDPJobSpec, RestartAction
from ddpjob_operator.api.status import DDPJobStatus, Failure, Progress, Restarts
from ddpjob_operator.core.backoff import doubled
from ddpjob_operator.core.failure.classes import KINDS, TAKEN_AWAY, Kind
from ddpjob_operator.core.model import Job
from ddpjob_operator.core.times import duration, epoch_seconds, rfc3339

#: Uncounted restarts without progress are bounded, too: a job on a broken cluster must end. The window is longer than
#: restart.windowSeconds by default, in which the back-off allows fewer than 20 restarts.
MAX_INFRASTRUCTURE_RESTARTS = 100
INFRASTRUCTURE_WINDOW_SECONDS = 86400.0

#: The second failure in a row waits about this long for its restart, each further one twice as long.
FIRST_DELAY_SECONDS = 10.0
LAST_DELAY_SECONDS = 300.0
#: An attempt that has run this long, or that made progress, was healthy: its failure is the first in a row again.
HEALTHY_SECONDS = 300.0
#: An attempt that ends sooner waits like a failure and counts in the bound above, whatever progress it reports. Otherwise a
#: program that comes one step further each time would restart without any delay and without end.
SHORT_SECONDS = 10.0

_RULE_KINDS = {
    RestartAction.FAIL: Kind.FINAL,
    RestartAction.RESTART: Kind.COUNTED,
    RestartAction.IGNORE: Kind.UNCOUNTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartDecision:
    """What follows from a failure."""

    restarts: Restarts
    """The counters after it."""
    delay_seconds: float = 0.0
    """How long the next attempt waits."""
    final: str | None = None
    """The reason with which the job ends; None if it continues."""
    why: str = ""
    """Why there is no further attempt, where the decision is final."""


def decide_restart(
    job: Job, spec: DDPJobSpec, status: DDPJobStatus, failure: Failure, progress: Progress | None, now: float
) -> RestartDecision:
    """What follows from this failure of the attempt that the status shows, which reported this progress last."""
    restarts = with_restarts_in_place(spec, status.restarts, progress, now)
    kind = kind_of(spec, failure)
    if kind == Kind.FINAL:
        by_rule = KINDS.get(failure.reason) != Kind.FINAL
        why = (
            f"a restart rule requests Fail for exit code {failure.exit_code}"
            if by_rule
            else "another attempt would end in the same way"
        )
        return RestartDecision(restarts=restarts, final=failure.reason, why=why)

    progressed = _made_progress(restarts, failure, progress)
    ran_seconds = now - epoch_seconds(status.running_since) if status.running_since else 0.0
    in_a_row = _in_a_row(restarts, failure, healthy=progressed or ran_seconds >= HEALTHY_SECONDS)
    short_in_a_row = restarts.short_in_a_row + 1 if ran_seconds < SHORT_SECONDS else 0
    delay_seconds = _delay_seconds(job, status.attempt, max(in_a_row, short_in_a_row))
    begins_again = progressed and not short_in_a_row
    uncounted = [] if begins_again else _since(restarts.infrastructure_times, now - INFRASTRUCTURE_WINDOW_SECONDS)
    update: dict[str, Any] = {
        "in_a_row": in_a_row,
        "short_in_a_row": short_in_a_row,
        "infrastructure_times": uncounted,
        **_furthest(restarts, failure, progress),
    }
    if kind == Kind.UNCOUNTED:
        if len(uncounted) >= MAX_INFRASTRUCTURE_RESTARTS:
            return RestartDecision(
                restarts=restarts, final=Reason.TOO_MANY_INFRASTRUCTURE_RESTARTS, why=_too_many(len(uncounted))
            )
        update |= {"infrastructure": restarts.infrastructure + 1, "infrastructure_times": [*uncounted, rfc3339(now)]}
        return RestartDecision(restarts=restarts.model_copy(update=update), delay_seconds=delay_seconds)

    if len(restarts.counted_times) >= spec.restart.max_restarts:
        return RestartDecision(restarts=restarts, final=failure.reason, why=_used_up(spec))
    update |= {"counted": restarts.counted + 1, "counted_times": [*restarts.counted_times, rfc3339(now)]}
    return RestartDecision(restarts=restarts.model_copy(update=update), delay_seconds=delay_seconds)


def with_restarts_in_place(spec: DDPJobSpec, restarts: Restarts, progress: Progress | None, now: float) -> Restarts:
    """The counters with the restarts in place of an attempt that ends now, or is interrupted, and within the window.

    When they were is not known, so they count as recent. A program may report any number, so no more are remembered than
    end the job.
    """
    most, in_place = spec.restart.max_restarts, (progress.in_place_restarts or 0) if progress else 0
    in_place = max(0, in_place - restarts.in_place_counted)
    recent = [*_since(restarts.counted_times, now - spec.restart.window_seconds), *[rfc3339(now)] * in_place]
    update = {
        "counted": restarts.counted + in_place,
        "counted_times": recent[max(0, len(recent) - most) :],
        "in_place_counted": restarts.in_place_counted + in_place,
    }
    return restarts.model_copy(update=update)


def after_replacement(restarts: Restarts) -> Restarts:
    """The counters of a restart that replaces only lost pods, for which the ranks of the others start again in place once."""
    update = {
        "pod_replacements": restarts.pod_replacements + 1,
        "in_place_counted": restarts.in_place_counted + 1,
    }
    return restarts.model_copy(update=update)


def recount(spec: DDPJobSpec, restarts: Restarts, recorded: Failure, better: Failure) -> Restarts:
    """The counters after the record of a failure turned out to be another: one that does not count, or that is none."""
    update: dict[str, Any] = {}
    if better.checkpoint_step is not None:
        update |= {"in_a_row": 0, **_furthest(restarts, better, None)}
    if kind_of(spec, recorded) == Kind.COUNTED and kind_of(spec, better) == Kind.UNCOUNTED:
        update |= {
            "counted": max(0, restarts.counted - 1),
            "counted_times": restarts.counted_times[:-1],
            "infrastructure": restarts.infrastructure + 1,
            "infrastructure_times": [*restarts.infrastructure_times, *restarts.counted_times[-1:]],
        }
    return restarts.model_copy(update=update)


def kind_of(spec: DDPJobSpec, failure: Failure) -> Kind:
    """How a failure is dealt with: by the user's rules for how programs end, otherwise by its class."""
    rules = () if failure.reason in TAKEN_AWAY else spec.restart.rules
    for rule in rules:
        if failure.exit_code in rule.exit_codes:
            return _RULE_KINDS[rule.action]
    return KINDS.get(failure.reason, Kind.COUNTED)  # what a newer release calls otherwise counts, so it ends


def restarts_left(spec: DDPJobSpec, restarts: Restarts) -> int:
    """How many counted restarts are left in the current window."""
    return max(0, spec.restart.max_restarts - len(restarts.counted_times))


def jitter(job: Job, attempt: int) -> float:
    """A number from 0 to 1 that differs between jobs and attempts, and is the same whenever it is asked for."""
    digest = hashlib.sha256(f"{job.uid}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32


def _made_progress(restarts: Restarts, failure: Failure, progress: Progress | None) -> bool:
    """Whether the attempt reached a later step, or saved a newer checkpoint, than any attempt before it."""
    return any(reached > getattr(restarts, field) for field, reached in _furthest(restarts, failure, progress).items())


def _furthest(restarts: Restarts, failure: Failure, progress: Progress | None) -> dict[str, int]:
    """The counters' memory of how far attempts have come, this one included."""
    step, saved = (progress.step, progress.checkpoint_step) if progress else (0, None)
    return {
        "furthest_step": max(restarts.furthest_step, step),
        "furthest_checkpoint_step": max(restarts.furthest_checkpoint_step, saved or 0, failure.checkpoint_step or 0),
    }


def _in_a_row(restarts: Restarts, failure: Failure, *, healthy: bool) -> int:
    """Failures without a healthy attempt between them, this one included; a stop on request is none."""
    if failure.checkpoint_step is not None:
        return 0
    return 1 if healthy else restarts.in_a_row + 1


def _since(times: Sequence[str], start: float) -> list[str]:
    return [time for time in times if epoch_seconds(time) > start]


def _delay_seconds(job: Job, attempt: int, in_a_row: int) -> float:
    """None before the first restart; then doubling, 20 % more or less so that jobs that fail together come apart."""
    if in_a_row <= 1:
        return 0.0
    delay = doubled(FIRST_DELAY_SECONDS, in_a_row - 2, LAST_DELAY_SECONDS)
    return delay * (0.8 + 0.4 * jitter(job, attempt))


def _too_many(num_recent: int) -> str:
    return (
        f"the job was restarted {num_recent} times within {duration(INFRASTRUCTURE_WINDOW_SECONDS)} for causes that do"
        f" not count, without progress in an attempt that ran for {duration(SHORT_SECONDS)}"
    )


def _used_up(spec: DDPJobSpec) -> str:
    most, window = spec.restart.max_restarts, duration(spec.restart.window_seconds)
    if most == 0:
        return "not restarted, since restart.maxRestarts is 0"
    return f"not restarted: restart.maxRestarts allows {most} counted restart{'s' if most > 1 else ''} within {window}"
