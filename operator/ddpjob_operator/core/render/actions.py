"""The actions that carry out a decision. What only changes the status has none."""

from collections.abc import Iterable

from ddpjob_operator.core import free_places
from ddpjob_operator.core.actions import Action, CreatePod, DeletePod
from ddpjob_operator.core.decision import Decision, KeepWhole, StaySuspended, Stop, WaitToStart
from ddpjob_operator.core.model import Observed, Pod
from ddpjob_operator.core.render.network_policy import ensure_network_policy
from ddpjob_operator.core.render.placeholders import create_placeholder
from ddpjob_operator.core.render.pods import PodManifest, default_image, name_of_pod
from ddpjob_operator.core.render.service import ensure_service
from ddpjob_operator.core.situation import Situation
from ddpjob_operator.core.stopping import (
    SURVIVOR_GRACE_SECONDS,
    has_stopped,
    may_still_run,
    pod_terminating_too_long,
    stop,
    stop_and_keep_logs,
    stop_with_own_grace,
)
from ddpjob_operator.core.times import epoch_seconds


def actions_of(situation: Situation, decision: Decision) -> tuple[Action, ...]:
    """The actions in the cluster, in order."""
    gang, released = situation.gang, situation.configured_provider.end(situation.observed)
    match decision:
        case KeepWhole():
            return (*_keep_whole(situation), *released)
        case WaitToStart():
            return (
                *_stop_earlier_attempts(situation, decision.stop),
                *_release_lost(situation),
                *_give_up_places(situation),
                *released,
            )
        case StaySuspended():
            return (
                *_stop_earlier_attempts(situation, Stop.WITH_OWN_GRACE),
                *_release_lost(situation),
                *remove_placeholders(situation.observed, gang.placeholders, situation.now),
                *released,
            )
        case _:
            return ()


def _keep_whole(situation: Situation) -> tuple[Action, ...]:
    """What pods need before they start, no pod of an earlier attempt but kept evidence, and every pod of this one."""
    observed, spec, gang = situation.observed, situation.spec, situation.gang
    provider, image = situation.provider, spec.image or default_image(observed)
    avoided = situation.avoided_nodes
    of_rank_0 = PodManifest(job=observed.job, spec=spec, image=image, rank=0, avoided=avoided, provider=provider)
    manifest = of_rank_0.for_rank
    before_pods = () if gang.all_scheduled else provider.before_pods(observed, spec, of_rank_0.render)
    missing = () if provider.hold(observed, spec) else gang.missing
    return (
        *ensure_service(observed.job, spec, observed.service),
        *ensure_network_policy(observed, spec),  # before the pods, so that no rank is ever open to strangers
        *before_pods,
        *stop(observed, gang.old, SURVIVOR_GRACE_SECONDS, situation.now),  # made by a writer with an old view
        # Before the new pods, which take their places.
        *remove_placeholders(observed, _needless_placeholders(situation), situation.now),
        *outdated_evidence(situation),  # before the new pods, for which a quota may have nothing left otherwise
        *(CreatePod(name=name_of_pod(observed.job, rank), manifest=manifest(rank)) for rank in missing),
        *(create_placeholder(manifest(rank)) for rank in _places_to_ask_for(situation)),
    )


def _places_to_ask_for(situation: Situation) -> list[int]:
    """Node ranks that the gang lacks and for which no pod waits yet."""
    status = situation.status
    asked = {pod.rank for pod in situation.gang.placeholders if pod.attempt == status.attempt}
    return [rank for rank in free_places.missing_ranks(situation) if rank not in asked]


def _needless_placeholders(situation: Situation) -> list[Pod]:
    """Pods that hold a place which the job does not need, or that lost their place some time ago.

    The first are pods of an earlier attempt, pods for nodes that are not missing, and spare pods of an older release.
    """
    attempt, ranks = situation.status.attempt, free_places.missing_ranks(situation)

    def is_needless(pod: Pod) -> bool:
        again = free_places.asks_again_at(situation, pod)
        return pod.attempt != attempt or pod.rank not in ranks or (again is not None and again <= situation.now)

    return [pod for pod in situation.gang.placeholders if is_needless(pod)]


def _give_up_places(situation: Situation) -> tuple[Action, ...]:
    """Delete the pods that hold places, unless the attempt waits only for the pods of a smaller gang to stop."""
    waits = situation.failure is not None or situation.status.retry_time is not None
    waits = waits or pod_terminating_too_long(situation.gang.old, situation.now) is not None
    return remove_placeholders(situation.observed, situation.gang.placeholders, situation.now) if waits else ()


def remove_placeholders(observed: Observed, pods: Iterable[Pod], now: float) -> tuple[Action, ...]:
    """The actions that delete these pods, which run no rank, and the objects of those whose node is lost."""
    pods = tuple(pods)
    living = (pod for pod in pods if pod.deletion is None)
    deletions = (DeletePod(name=pod.name, uid=pod.uid, grace_seconds=SURVIVOR_GRACE_SECONDS) for pod in living)
    return (*deletions, *stop(observed, (pod for pod in pods if pod.deletion is not None), None, now))


def outdated_evidence(situation: Situation) -> list[DeletePod]:
    """Delete the pods of attempts that are no longer kept, and replaced ones of the current attempt.

    Of each rank as many replaced pods are kept as attempts: an attempt may lose pods for weeks.
    """
    status, num_kept = situation.status, situation.spec.restart.keep_attempts

    def is_outdated(pod: Pod) -> bool:
        is_recent = pod.replacement >= status.replacement(pod.rank) - num_kept
        is_kept = is_recent if pod.attempt == status.attempt else pod.attempt >= status.attempt - num_kept
        return not (is_kept and num_kept)

    return [
        DeletePod(name=pod.name, uid=pod.uid, grace_seconds=SURVIVOR_GRACE_SECONDS)
        for pod in situation.gang.old
        if is_outdated(pod) and pod.all_ended and pod.deletion is None
    ]


def _stop_earlier_attempts(situation: Situation, how: Stop) -> tuple[Action, ...]:
    observed, failure, now = situation.observed, situation.failure, situation.now
    alive = may_still_run(observed, situation.gang.old, now)
    match how:
        case Stop.AT_ONCE:
            return stop(observed, alive, SURVIVOR_GRACE_SECONDS, now)
        case Stop.WITH_OWN_GRACE:
            return stop_with_own_grace(observed, alive, now)
        case Stop.AND_KEEP_LOGS:
            return stop_and_keep_logs(observed, alive, epoch_seconds(failure.time) if failure else now, now)


def _release_lost(situation: Situation) -> tuple[Action, ...]:
    """Remove the objects of pods that count as stopped since their node is lost."""
    observed, now = situation.observed, situation.now
    lost = (pod for pod in situation.gang.old if pod.deletion is not None and has_stopped(observed, pod, now))
    return stop(observed, lost, None, now)
