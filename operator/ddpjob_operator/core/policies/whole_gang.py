"""A gang that is wanted: how far it is, what it waits for, and what is worth saying while it runs."""

from ddpjob_operator.api.names import ProviderName, Reason
from ddpjob_operator.core import free_places, separate_trainings
from ddpjob_operator.core.actions import Lookup
from ddpjob_operator.core.decision import Advice, KeepWhole
from ddpjob_operator.core.failure.messages import failure_sentence
from ddpjob_operator.core.gang import Gang
from ddpjob_operator.core.model import Pod
from ddpjob_operator.core.policies import autoscaling
from ddpjob_operator.core.policies.obstacles import QUIET_START_SECONDS, deletion_message, explain_wait, warning_lookup
from ddpjob_operator.core.refusals import refusals
from ddpjob_operator.core.situation import Situation
from ddpjob_operator.core.stopping import next_overdue, node_lookups
from ddpjob_operator.core.times import duration, soonest

#: Ranks of one job end a moment apart; only what takes longer is reported.
FINISHING_SECONDS = 30.0
#: How often the position of a job in a queue is reported again: it changes with other jobs.
QUEUE_SECONDS = 60.0
#: A program that prints progress lines has printed one by now.
QUIET_SECONDS = 120.0
_WITH_QUEUES = (ProviderName.KUEUE, ProviderName.VOLCANO)


def keep_whole(situation: Situation) -> Advice:
    """Create the pods that are missing and let the gang run."""
    gang, running = situation.gang, situation.clocks.running
    created = not gang.missing
    is_running = created and running is not None
    reason, message = _while_running(situation) if is_running else _while_starting(situation)
    return Advice(
        decision=KeepWhole(reason=reason, message=message, created=created, running=is_running),
        lookups=_lookups(situation),
        wake_at=soonest(_wake_ups(situation, reason), situation.now),
    )


def _lookups(situation: Situation) -> tuple[Lookup, ...]:
    gang, now = situation.gang, situation.now
    pods = gang.current.values() if situation.clocks.running is not None else (*gang.current.values(), *gang.old)
    warning = warning_lookup(gang, _placed_at(situation), now)
    scale_up = autoscaling.lookup(situation)
    return (
        *situation.latest_record.lookups,
        *node_lookups(situation.status, (*pods, *_lost_places(gang)), now),
        *((warning,) if warning else ()),
        *((scale_up,) if scale_up else ()),
    )


def _wake_ups(situation: Situation, reason: str) -> tuple[float | None, ...]:
    placed_at = _placed_at(situation)
    return (
        _finishing_at(situation),
        _quiet_at(situation),
        placed_at and placed_at + QUIET_START_SECONDS,
        autoscaling.next_change(situation),
        next_overdue([*situation.gang.current.values(), *_lost_places(situation.gang)], situation.now),
        situation.now + QUEUE_SECONDS if reason == Reason.QUEUED else None,
    )


def _lost_places(gang: Gang) -> list[Pod]:
    """The pods of no rank that are being deleted, which stay for ever if their node is lost."""
    return [pod for pod in gang.placeholders if pod.deletion is not None]


def _placed_at(situation: Situation) -> float | None:
    """From when a gang that does not run yet has had all its nodes."""
    return None if situation.clocks.running is not None else situation.clocks.scheduled


def _while_starting(situation: Situation) -> tuple[str, str]:
    reason, message = explain_wait(situation.observed, situation.gang, situation.provider)
    if reason == Reason.UNSCHEDULABLE:
        message = autoscaling.explanation(situation) + message
    queue, provider = situation.spec.scheduling.queue_name, situation.provider.name
    if queue is not None and provider not in _WITH_QUEUES:
        message = f"{message}; queueName {queue} has no effect, since the scheduling provider is {provider}"
    if situation.spec.scheduling.shared_claims and not situation.provider.shares_claims:
        message = f"{message}; scheduling.sharedClaims has no effect, since the scheduling provider is {provider}"
    if situation.spec.min_nodes is not None and not situation.provider.places_fewer:
        message = f"{message}; minNodes has no effect, since the scheduling provider is {provider}"
    if situation.failure is not None:
        message = f"{message}; {failure_sentence(situation.failure)}"
    if avoided := situation.avoided_nodes:
        message = f"{message}; the job avoids {', '.join(avoided)} after earlier failures there"
    return reason, message


def _while_running(situation: Situation) -> tuple[str, str]:
    gang, now = situation.gang, situation.now
    finishing_at = _finishing_at(situation)
    if finishing_at is not None and finishing_at <= now:
        late = gang.unfinished[0]
        return Reason.FINISHING, (
            f"{gang.num_nodes - len(gang.unfinished)} of {gang.num_nodes} pods have succeeded; pod {late.name}"
            f" (node rank {late.rank}, node {late.node}) still runs;"
            f" deadlines.finishSeconds is {duration(situation.spec.deadlines.finish_seconds)}"
        )
    if deletion := deletion_message(gang.unfinished):
        return Reason.RUNNING, deletion
    if refused := refusals(situation.observed.rejections):  # of the Service, which anybody may have changed
        return Reason.RUNNING, refused
    message = f"all {gang.num_nodes} pods run" if gang.num_nodes > 1 else "the pod runs"
    if wanted := situation.status.shrunk_from:
        message += f", of {wanted} that are wanted; {_growth(situation)}"
    if failure := situation.failure:
        message += f" in attempt {situation.status.attempt}. Before: {failure_sentence(failure)}"
    return Reason.RUNNING, message + _remarks(situation)


def _remarks(situation: Situation) -> str:
    """What is worth saying of a program that runs."""
    quiet_at, message = _quiet_at(situation), ""
    if alone := separate_trainings.warning(situation.spec):
        message += f"; {alone}"
    if situation.progress and situation.progress.unreadable:
        message += f"; in the progress line of rank 0 {situation.progress.unreadable}"
    if situation.spec.restart.spares:
        message += "; restart.spares has no effect: this release has no spare pods"
    if situation.spec.checkpoint is None:
        message += "; without spec.checkpoint a restart begins at step 0"
    if quiet_at is not None and quiet_at <= situation.now:
        message += "; the program prints no progress lines, so the operator cannot detect a hang"
    return message


def _growth(situation: Situation) -> str:
    ranks = free_places.missing_ranks(situation)
    if not ranks:
        return "the next attempt begins with all again"
    return f"{len(free_places.holders(situation))} of {len(ranks)} pods that wait for the missing nodes have one"


def _finishing_at(situation: Situation) -> float | None:
    """From when the status says that some ranks have succeeded and others still run."""
    first = situation.gang.first_success
    return None if first is None or situation.gang.all_succeeded else first + FINISHING_SECONDS


def _quiet_at(situation: Situation) -> float | None:
    """From when the status says that a program of the user's prints no progress lines."""
    running = situation.clocks.running
    prints = situation.spec.trainer or situation.observed.progress or situation.status.progress
    return None if prints or running is None else running + QUIET_SECONDS
