"""What a failure leads to: the next attempt, counted or not, or the end of the job."""

from dataclasses import dataclass
from enum import Enum

from ddpjob_operator.api.names import Reason
from ddpjob_operator.api.spec import DDPJobSpec, RestartAction
from ddpjob_operator.api.status import Failure, Restarts
from ddpjob_operator.core.failure import INFRASTRUCTURE
from ddpjob_operator.core.times import duration, epoch_seconds, rfc3339

#: Uncounted restarts are bounded, too: a job that only ever meets a broken cluster must end.
MAX_INFRASTRUCTURE_RESTARTS = 100

_UNCOUNTED = INFRASTRUCTURE | {Reason.STOPPED_WITH_CHECKPOINT, Reason.SPEC_CHANGED}


class Kind(Enum):
    """How a failure is dealt with."""

    COUNTED = "restart, and count it"
    UNCOUNTED = "restart without counting"
    FINAL = "end the job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What follows from a failure."""

    restarts: Restarts
    """The counters after it."""
    final: str | None = None
    """The reason with which the job ends; None if it goes on."""
    why: str = ""
    """For a final verdict: why there is no further attempt."""


def judge(spec: DDPJobSpec, restarts: Restarts, failure: Failure, now: float) -> Verdict:
    """What follows from this failure, with these restarts before it."""
    kind = kind_of(spec, failure)
    if kind == Kind.FINAL:
        why = (
            "another attempt would end the same"
            if failure.reason == Reason.BAD_CONFIG
            else f"a restart rule says Fail for exit code {failure.exit_code}"
        )
        return Verdict(restarts=restarts, final=failure.reason, why=why)
    if kind == Kind.UNCOUNTED:
        if restarts.infrastructure >= MAX_INFRASTRUCTURE_RESTARTS:
            why = f"the job was restarted {restarts.infrastructure} times for causes that do not count"
            return Verdict(restarts=restarts, final=Reason.TOO_MANY_INFRASTRUCTURE_RESTARTS, why=why)
        more = restarts.model_copy(update={"infrastructure": restarts.infrastructure + 1})
        return Verdict(restarts=more)
    recent = [t for t in restarts.counted_times if epoch_seconds(t) > now - spec.restart.window_seconds]
    if len(recent) >= spec.restart.max_restarts:
        why = _used_up(spec, len(recent))
        return Verdict(restarts=restarts, final=failure.reason, why=why)
    counted = restarts.model_copy(update={"counted": restarts.counted + 1, "counted_times": [*recent, rfc3339(now)]})
    return Verdict(restarts=counted)


def recounted(spec: DDPJobSpec, restarts: Restarts, recorded: Failure, better: Failure) -> Restarts:
    """The counters after a failure that was counted turned out to be one that does not count."""
    if kind_of(spec, recorded) != Kind.COUNTED or kind_of(spec, better) != Kind.UNCOUNTED:
        return restarts
    return restarts.model_copy(
        update={
            "counted": restarts.counted - 1,
            "counted_times": restarts.counted_times[:-1],
            "infrastructure": restarts.infrastructure + 1,
        }
    )


def kind_of(spec: DDPJobSpec, failure: Failure) -> Kind:
    """How a failure is dealt with: the user's rules first, then its class."""
    actions = {
        RestartAction.FAIL: Kind.FINAL,
        RestartAction.RESTART: Kind.COUNTED,
        RestartAction.IGNORE: Kind.UNCOUNTED,
    }
    for rule in spec.restart.rules:
        if failure.exit_code in rule.exit_codes:
            return actions[rule.action]
    if failure.reason == Reason.BAD_CONFIG:
        return Kind.FINAL
    return Kind.UNCOUNTED if failure.reason in _UNCOUNTED else Kind.COUNTED


def _used_up(spec: DDPJobSpec, num_recent: int) -> str:
    if spec.restart.max_restarts == 0:
        return "restart.maxRestarts is 0"
    window = duration(spec.restart.window_seconds)
    return f"{num_recent} counted restarts within {window} are all that restart.maxRestarts allows"
