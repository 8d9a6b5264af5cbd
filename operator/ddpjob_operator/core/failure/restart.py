"""What a failure leads to: the next attempt, counted or not, at once or later, or the end of the job."""

import hashlib
from dataclasses import dataclass

from ddpjob_operator.api.names import Reason
from ddpjob_operator.api.spec import DDPJobSpec, RestartAction
from ddpjob_operator.api.status import DDPJobStatus, Failure, Restarts
from ddpjob_operator.core.failure.classes import KINDS, Kind
from ddpjob_operator.core.model import Job
from ddpjob_operator.core.times import duration, epoch_seconds, rfc3339

#: Uncounted restarts are bounded, too: a job that only ever meets a broken cluster must end.
MAX_INFRASTRUCTURE_RESTARTS = 100

#: The second failure in a row waits about this long for its restart, each further one twice as long.
FIRST_DELAY_SECONDS = 10.0
LAST_DELAY_SECONDS = 300.0
#: An attempt that has run this long was healthy: its failure is the first in a row again.
HEALTHY_SECONDS = 300.0

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
    """The reason with which the job ends; None if it goes on."""
    why: str = ""
    """For a final verdict: why there is no further attempt."""


def decide_restart(job: Job, spec: DDPJobSpec, status: DDPJobStatus, failure: Failure, now: float) -> RestartDecision:
    """What follows from this failure of the attempt that the status shows."""
    restarts = status.restarts
    kind = kind_of(spec, failure)
    if kind == Kind.FINAL:
        by_rule = KINDS.get(failure.reason) != Kind.FINAL
        why = (
            f"a restart rule says Fail for exit code {failure.exit_code}"
            if by_rule
            else "another attempt would end the same"
        )
        return RestartDecision(restarts=restarts, final=failure.reason, why=why)

    in_a_row = _in_a_row(status, failure, now)
    delay_seconds = _delay_seconds(job, status.attempt, in_a_row)
    if kind == Kind.UNCOUNTED:
        if restarts.infrastructure >= MAX_INFRASTRUCTURE_RESTARTS:
            why = f"the job was restarted {restarts.infrastructure} times for causes that do not count"
            return RestartDecision(restarts=restarts, final=Reason.TOO_MANY_INFRASTRUCTURE_RESTARTS, why=why)
        more = restarts.model_copy(update={"infrastructure": restarts.infrastructure + 1, "in_a_row": in_a_row})
        return RestartDecision(restarts=more, delay_seconds=delay_seconds)

    recent = [t for t in restarts.counted_times if epoch_seconds(t) > now - spec.restart.window_seconds]
    if len(recent) >= spec.restart.max_restarts:
        return RestartDecision(restarts=restarts, final=failure.reason, why=_used_up(spec, len(recent)))
    counted = restarts.model_copy(
        update={
            "counted": restarts.counted + 1,
            "counted_times": [*recent, rfc3339(now)],
            "in_a_row": in_a_row,
        }
    )
    return RestartDecision(restarts=counted, delay_seconds=delay_seconds)


def recount(spec: DDPJobSpec, restarts: Restarts, recorded: Failure, better: Failure) -> Restarts:
    """The counters after the record of a failure turned out to be another: one that does not count, or that is none."""
    if better.checkpoint_step is not None:
        restarts = restarts.model_copy(update={"in_a_row": 0})
    if kind_of(spec, recorded) != Kind.COUNTED or kind_of(spec, better) != Kind.UNCOUNTED:
        return restarts
    return restarts.model_copy(
        update={
            "counted": max(0, restarts.counted - 1),
            "counted_times": restarts.counted_times[:-1],
            "infrastructure": restarts.infrastructure + 1,
        }
    )


def kind_of(spec: DDPJobSpec, failure: Failure) -> Kind:
    """How a failure is dealt with: the user's rules first, then its class."""
    for rule in spec.restart.rules:
        if failure.exit_code in rule.exit_codes:
            return _RULE_KINDS[rule.action]
    return KINDS.get(failure.reason, Kind.COUNTED)  # what a newer release calls otherwise counts, so it ends


def jitter(job: Job, attempt: int) -> float:
    """A number from 0 to 1 that differs between jobs and attempts, and is the same whenever it is asked for."""
    digest = hashlib.sha256(f"{job.uid}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32


def _in_a_row(status: DDPJobStatus, failure: Failure, now: float) -> int:
    """Failures without a healthy attempt between them, this one included; a stop on request is none."""
    if failure.checkpoint_step is not None:
        return 0
    ran_well = status.running_since is not None and now - epoch_seconds(status.running_since) >= HEALTHY_SECONDS
    return 1 if ran_well else status.restarts.in_a_row + 1


def _delay_seconds(job: Job, attempt: int, in_a_row: int) -> float:
    """None before the first restart; then doubling, 20 % more or less so that jobs that fail together come apart."""
    if in_a_row <= 1:
        return 0.0
    delay: float = min(FIRST_DELAY_SECONDS * 2.0 ** min(in_a_row - 2, 10), LAST_DELAY_SECONDS)
    return delay * (0.8 + 0.4 * jitter(job, attempt))


def _used_up(spec: DDPJobSpec, num_recent: int) -> str:
    if spec.restart.max_restarts == 0:
        return "not restarted, since restart.maxRestarts is 0"
    window = duration(spec.restart.window_seconds)
    return f"not restarted: restart.maxRestarts allows {num_recent} counted restarts within {window}"
