"""A gang that holds places for some of its pods while the rest find none, without a scheduler that knows of gangs.

Two such gangs may wait for each other for ever. So each gives its places back after a while and asks again a little
later; the times differ from job to job and attempt to attempt, so one of them finds all places free.
"""

from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.gang import Gang
from ddpjob_operator.core.model import Job, Observed
from ddpjob_operator.core.restart import jitter
from ddpjob_operator.core.times import epoch_seconds

#: A gang keeps places for a part of it about this long; twice as long each time, since a node may be on its way.
HOLD_SECONDS = 30.0
MAX_HOLD_SECONDS = 600.0
#: Having given its places back, it leaves them to others for about this long.
PAUSE_SECONDS = 15.0


def gives_back_at(seen: Observed, status: DDPJobStatus, gang: Gang) -> float | None:
    """When the gang gives its places back; None while it has all of them or none, or nobody has refused it the rest."""
    hold = _hold_seconds(seen, status, gang)
    if not 0 < gang.num_placed < gang.num_nodes or hold is None or status.attempt_start_time is None:
        return None
    since = min((pod.placed for pod in gang.current.values() if pod.placed is not None), default=0.0)
    held_from = max(since, epoch_seconds(status.attempt_start_time))
    return held_from + hold * (0.5 + jitter(seen.job, status.attempt))


def _hold_seconds(seen: Observed, status: DDPJobStatus, gang: Gang) -> float | None:
    unschedulable = any(pod.node is None and pod.waiting for pod in gang.current.values())
    if unschedulable or seen.is_refused:
        return min(HOLD_SECONDS * 2.0 ** min(status.give_backs, 10), MAX_HOLD_SECONDS)
    # A server that fails most likely fails the others as well, and soon no more; places given back would help nobody.
    return MAX_HOLD_SECONDS if seen.rejections else None


def pause_seconds(job: Job, status: DDPJobStatus) -> float:
    """How long it then waits."""
    return PAUSE_SECONDS * (0.5 + jitter(job, -status.attempt))
