"""An attempt that has ended: one rank that is down ends the whole gang. What was the cause, and what follows from it?"""

from collections.abc import Sequence

from ddpjob_operator.api.names import ConditionType, Phase
from ddpjob_operator.api.status import Failure
from ddpjob_operator.core.actions import Lookup
from ddpjob_operator.core.decision import Advice, AwaitEvidence, Finish, ReplacePods, StartNextAttempt
from ddpjob_operator.core.failure.cause import (
    End,
    cause_of,
    decidable_at,
    ends_of,
    failure_of,
    has_ended,
    log_may_prove_it,
    missing_ends,
    wanted_logs,
    with_early_success,
)
from ddpjob_operator.core.failure.messages import failure_sentence
from ddpjob_operator.core.failure.restart import RestartDecision, after_replacement, decide_restart
from ddpjob_operator.core.gang import is_current
from ddpjob_operator.core.policies.late_replacement import restart_after_the_wait
from ddpjob_operator.core.policies.partial_gang import after_time_out
from ddpjob_operator.core.policies.pod_replacement import ranks_to_replace
from ddpjob_operator.core.render.pods import name_of_pod
from ddpjob_operator.core.situation import Situation
from ddpjob_operator.core.stopping import node_lookups


def restart_or_fail(situation: Situation) -> Advice:
    """Begin the next attempt, or end the job, once the cause of the attempt's end is known."""
    ends = _ends(situation)
    cause = cause_of(ends)
    if cause is None:
        return Advice()
    observed, gang, now = situation.observed, situation.gang, situation.now
    logs = wanted_logs(observed, [pod for pod in gang.current.values() if has_ended(pod, now)])
    lookups: tuple[Lookup, ...] = (*logs, *node_lookups(situation.status, gang.current.values(), now))

    settled = decidable_at(cause, num_running=sum(pod.exit is None for pod in gang.current.values()))
    if cause.seen <= now < settled:  # an end in the future: the clock was set back, nobody knows how long ago
        return Advice(decision=AwaitEvidence(), lookups=lookups, wake_at=settled)
    after_wait = restart_after_the_wait(situation, cause)
    if (cause.is_echo or after_wait) and any(pod.node is None for pod in gang.current.values()):
        return Advice(decision=after_time_out(situation))  # of ranks with a node that waited for those without
    if after_wait is not None:
        return Advice(decision=after_wait)
    cause = with_early_success(cause, gang.current.values())
    failure = failure_of(observed, cause, situation.status.attempt, now)
    restart = _restart(situation, failure)
    # A restart does not wait for a log. What is final or may turn out to be, or depends on torchrun's table, does.
    if logs and (restart.final or situation.spec.restart.rules or log_may_prove_it(observed, cause)):
        return Advice(decision=AwaitEvidence(), lookups=lookups)
    if ranks := ranks_to_replace(situation, ends, restart):
        return Advice(decision=_replacement(ranks, failure, restart), lookups=lookups)
    return Advice(decision=decision_after(failure, restart), lookups=lookups)


def _replacement(ranks: tuple[int, ...], failure: Failure, restart: RestartDecision) -> ReplacePods:
    """The decision to replace the lost pods of these ranks."""
    replaced = failure.model_copy(update={"replaced": True})
    return ReplacePods(
        ranks=ranks,
        message=failure_sentence(replaced),
        restarts=after_replacement(restart.restarts),
        failure=replaced,
    )


def fail(situation: Situation, failure: Failure) -> Finish | StartNextAttempt:
    """The decision on an attempt that the operator itself ends."""
    return decision_after(failure, _restart(situation, failure))


def decision_after(failure: Failure, restart: RestartDecision) -> Finish | StartNextAttempt:
    """The decision that carries out what follows from a failure."""
    message = failure_sentence(failure)
    if restart.final is not None:
        return Finish(succeeded=False, reason=restart.final, message=f"{message}; {restart.why}", failure=failure)
    return StartNextAttempt(
        phase=Phase.RESTARTING,
        reason=failure.reason,
        message=message,
        delay_seconds=restart.delay_seconds,
        restarts=restart.restarts,
        failure=failure,
    )


def _restart(situation: Situation, failure: Failure) -> RestartDecision:
    spec, status = situation.spec, situation.status
    return decide_restart(situation.job, spec, status, failure, situation.progress, situation.now)


def _ends(situation: Situation) -> list[End]:
    """The ends that end the current attempt; none while it continues."""
    observed, gang, now = situation.observed, situation.gang, situation.now
    ends = ends_of(observed, (pod for pod in gang.current.values() if has_ended(pod, now)), now)
    names = {rank: name_of_pod(situation.job, rank) for rank in _missing_that_existed(situation)}
    return [*ends, *missing_ends(observed, names, now)]


def _missing_that_existed(situation: Situation) -> Sequence[int]:
    """The node ranks without a pod whose current pods have been created already."""
    status, missing = situation.status, situation.gang.missing
    if status.condition(ConditionType.CREATED):
        return missing
    if not status.replaced_pods:
        return ()
    # The gang had run, and only successors of lost pods are still to be created.
    gone = {pod.rank for pod in situation.observed.vanished if is_current(pod, status)}
    return [rank for rank in missing if not status.replacement(rank) or rank in gone]
