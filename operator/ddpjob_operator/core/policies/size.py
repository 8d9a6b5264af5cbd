"""A job whose number of nodes changes: the pods stop and may save their work, and the next attempt has the new number.

`partial_gang.py` decides when a gang continues on fewer nodes because it does not get all.
"""

from ddpjob_operator.api.names import Phase, ProviderName, Reason
from ddpjob_operator.core.decision import Advice, StartNextAttempt
from ddpjob_operator.core.situation import Situation
from ddpjob_operator.core.times import duration


def change_size(situation: Situation) -> Advice:
    """Replace a gang of another number of nodes than the spec's; its pods have their own grace to save their work.

    Not while it ends: the first rank that has succeeded has done its part of all the work.
    """
    nodes, wanted, least = situation.spec.nodes, situation.wanted_nodes, situation.spec.min_nodes
    has_shrunk = situation.status.shrunk_from == wanted and least is not None and least <= nodes
    if nodes == wanted or has_shrunk or situation.gang.first_success is not None:
        return Advice()
    message = (
        f"spec.nodes was changed from {nodes} to {wanted}: the pods stop and may save their work, and the next attempt"
        f" continues on {wanted} node{'s' if wanted > 1 else ''}"
    )
    return Advice(decision=StartNextAttempt(phase=Phase.RESTARTING, reason=Reason.RESIZED, message=message))


def try_all_nodes_again(situation: Situation) -> Advice:
    """Begin an attempt with all nodes once the job has run on fewer for as long as it allows.

    Whether there are free nodes is not known before pods ask for them. Not under a provider that has come since, which would leave the
    job without any.
    """
    status, since = situation.status, situation.clocks.running
    limit = situation.spec.deadlines.fewer_nodes_seconds
    if status.shrunk_from is None or limit is None or since is None or situation.gang.first_success is not None:
        return Advice()
    if situation.next_provider.name != ProviderName.NONE:
        return Advice()
    if since + limit > situation.now:
        return Advice(wake_at=since + limit)
    message = (
        f"the job ran on {situation.spec.nodes} of {situation.wanted_nodes} nodes for deadlines.fewerNodesSeconds"
        f" ({duration(limit)}): the pods stop and may save their work, and the next attempt asks for all nodes"
    )
    return Advice(decision=StartNextAttempt(phase=Phase.RESTARTING, reason=Reason.RESIZED, message=message))
