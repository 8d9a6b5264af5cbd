"""A job whose number of nodes changes: the pods stop and may save their work, and the next attempt has the new number.

`partial_gang.py` decides when a gang continues on fewer nodes because it does not get all.
"""

from ddpjob_operator.api.names import Phase, Reason
from ddpjob_operator.core import free_places
from ddpjob_operator.core.decision import Advice, StartNextAttempt
from ddpjob_operator.core.failure.cause import has_ended
from ddpjob_operator.core.situation import Situation
from ddpjob_operator.core.times import soonest

#: Pods must have held the places of all missing nodes for this long. Until then a new node may be taken away or not
#: become ready.
HELD_SECONDS = 30.0


def change_size(situation: Situation) -> Advice:
    """Replace a gang of another number of nodes than the spec's; its pods have their own grace to save their work.

    Not while it ends: the first rank that has succeeded has done its part of all the work, and one that has failed has
    a cause, which is recorded and counts. The attempt after it has the wanted size as well.
    """
    nodes, wanted, least = situation.spec.nodes, situation.wanted_nodes, situation.spec.min_nodes
    has_shrunk = situation.status.shrunk_from == wanted and least is not None and least <= nodes
    has_failed = any(has_ended(pod, situation.now) for pod in situation.gang.current.values())
    if nodes == wanted or has_shrunk or has_failed or situation.gang.first_success is not None:
        return Advice()
    message = (
        f"spec.nodes was changed from {nodes} to {wanted}: the pods stop and may save their work, and the next attempt"
        f" continues on {wanted} node{'s' if wanted > 1 else ''}"
    )
    return Advice(decision=StartNextAttempt(phase=Phase.RESTARTING, reason=Reason.RESIZED, message=message))


def use_free_places(situation: Situation) -> Advice:
    """Begin an attempt with more nodes once pods have held places for these for a while.

    Once there are places for all missing nodes, a short while is enough. With places for some of them, the job waits
    for the others as long as a gang does. Then it continues on the places that there are, so that no place is held for
    long.
    """
    at, ranks = free_places.asks_at(situation), free_places.missing_ranks(situation)
    held = free_places.holders(situation)
    if not held:
        again = (free_places.asks_again_at(situation, pod) for pod in situation.gang.placeholders)
        return Advice(wake_at=soonest((at, *again), situation.now))
    has_all = len(held) == len(ranks)
    full_size_seconds = situation.spec.deadlines.full_size_seconds
    begins = (
        free_places.placed_at(held[-1]) + HELD_SECONDS
        if has_all
        else free_places.placed_at(held[0]) + full_size_seconds
    )
    if begins > situation.now:
        return Advice(wake_at=begins)
    nodes = situation.spec.nodes + len(held)
    message = (
        f"there are places for {len(held)} of the {len(ranks)} missing nodes: the pods stop and may save their work, and the next"
        f" attempt continues on {nodes} nodes"
    )
    size = None if has_all else nodes
    return Advice(
        decision=StartNextAttempt(phase=Phase.RESTARTING, reason=Reason.RESIZED, message=message, shrinks_to=size)
    )
