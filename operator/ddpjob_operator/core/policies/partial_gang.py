"""A gang of which some pods have a node while the others find none, without a scheduler that knows of gangs.

Two such gangs may wait for each other for ever. So each releases its nodes after a while and tries again a little
later; the times differ from job to job and attempt to attempt, so one of them finds all nodes free. A gang for which an
autoscaler adds nodes waits for them first.

A gang with minNodes that has at least these does not release them: it continues on as many nodes as it has.
"""

from ddpjob_operator.api.names import Phase, Reason
from ddpjob_operator.core.backoff import doubled
from ddpjob_operator.core.decision import Advice, StartNextAttempt
from ddpjob_operator.core.failure.restart import jitter
from ddpjob_operator.core.policies import autoscaling
from ddpjob_operator.core.situation import Situation
from ddpjob_operator.core.times import duration

#: A gang holds the nodes of a part of it about this long; twice as long each time, since a node may be on its way.
HOLD_SECONDS = 30.0
MAX_HOLD_SECONDS = 600.0
#: Having released its nodes, it leaves them to others for about this long.
PAUSE_SECONDS = 15.0


def release_held_nodes(situation: Situation) -> Advice:
    """Release the nodes of a part of the gang once it has held them for long enough, or continue on these alone."""
    at = releases_at(situation)
    if at is None or at > situation.now:
        return Advice(wake_at=at)
    return Advice(decision=shrink(situation) if may_shrink(situation) else release(situation))


def after_time_out(situation: Situation) -> StartNextAttempt:
    """What follows when the ranks that have a node give up before the job does.

    Such a program waits for the other ranks less long than the job may, so every attempt ends in this way. The job
    continues on fewer nodes once all attempts together have waited for fullSizeSeconds, provided that the other pods
    were refused a node.
    """
    is_late = situation.clocks.queued + situation.spec.deadlines.full_size_seconds <= situation.now
    is_refused = releases_at(situation) is not None
    return shrink(situation) if is_late and is_refused and may_shrink(situation) else release(situation)


def release(situation: Situation) -> StartNextAttempt:
    """Release the nodes of a part of the gang, and begin a new attempt after a pause."""
    gang = situation.gang
    return StartNextAttempt(
        phase=Phase.PENDING,
        reason=Reason.GANG_GIVEN_BACK,
        message=(
            f"only {gang.num_placed} of {gang.num_nodes} pods found a node: the gang releases its nodes, and tries again after a pause"
        ),
        delay_seconds=PAUSE_SECONDS * (0.5 + jitter(situation.job, -situation.status.attempt)),
        releases_partial_gang=True,
    )


def shrink(situation: Situation, deadline: str = "fullSizeSeconds") -> StartNextAttempt:
    """Begin a new attempt on as many nodes as the gang has, without a pause, in which others could take them.

    `deadline` is the name of the limit that has passed.
    """
    gang, limits = situation.gang, situation.spec.deadlines
    seconds = limits.full_size_seconds if deadline == "fullSizeSeconds" else limits.queue_seconds or 0
    return StartNextAttempt(
        phase=Phase.RESTARTING,
        reason=Reason.RESIZED,
        message=(
            f"{gang.num_placed} of {gang.num_nodes} pods had a node after deadlines.{deadline}"
            f" ({duration(seconds)}): the next attempt has {gang.num_placed}"
            f" node{'s' if gang.num_placed > 1 else ''}, since minNodes is {situation.spec.min_nodes}"
        ),
        shrinks_to=gang.num_placed,
        releases_partial_gang=not situation.status.replaced_pods,  # the other pods of a replaced one have work to save
    )


def may_shrink(situation: Situation) -> bool:
    """Whether the job may continue on the nodes that it has, which are not all."""
    least, gang = situation.spec.min_nodes, situation.gang
    is_enough = least is not None and least <= gang.num_placed < gang.num_nodes
    return is_enough and situation.provider.places_fewer


def releases_at(situation: Situation) -> float | None:
    """When the gang releases its nodes; None while it has all or none, or while no other pod is refused one."""
    gang, hold = situation.gang, _hold_seconds(situation)
    # A pod that is replaced needs a node of its own, also where the gang got its first nodes together.
    is_placed_together = situation.provider.places_whole_gangs and not situation.status.replaced_pods
    if not 0 < gang.num_placed < gang.num_nodes or hold is None:
        return None
    first_placed = min((pod.placed for pod in gang.current.values() if pod.placed is not None), default=0.0)
    held_since = max(first_placed, situation.clocks.creation_began)
    if may_shrink(situation):
        return held_since + situation.spec.deadlines.full_size_seconds
    if is_placed_together:
        return None
    return max(
        held_since + hold * (0.5 + jitter(situation.job, situation.status.attempt)),
        autoscaling.ends_at(situation) or 0.0,
    )


def _hold_seconds(situation: Situation) -> float | None:
    observed = situation.observed
    if situation.gang.is_refused_a_node or observed.is_refused:
        return doubled(HOLD_SECONDS, situation.status.give_backs, MAX_HOLD_SECONDS)
    # A server that fails most likely fails for other jobs as well, and soon recovers: released nodes would help nobody.
    return MAX_HOLD_SECONDS if observed.rejections else None
