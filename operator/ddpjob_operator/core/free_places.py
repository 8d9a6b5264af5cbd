"""Places for the nodes that a job on fewer nodes lacks: pods without a program wait for them next to its ranks.

A scheduler says whether there is a place only for a pod that asks for one, and an autoscaler adds nodes only for such pods. So
for each missing node one pod waits that needs what a rank needs. It holds its place until the gang is as large as it can be.
"""

from ddpjob_operator.core.model import Pod
from ddpjob_operator.core.situation import Situation


def asks_at(situation: Situation) -> float | None:
    """From when pods wait for the missing nodes; None while the job runs on all, or does not run.

    Not under a provider that has come since, whose next attempt could not have fewer nodes again.
    """
    status, since, gang = situation.status, situation.clocks.running, situation.gang
    limit = situation.spec.deadlines.fewer_nodes_seconds
    if status.shrunk_from is None or limit is None or since is None or not gang.all_up:
        return None
    ends = gang.first_success is not None or situation.spec.suspend
    return None if ends or not situation.next_provider.places_fewer else since + limit


def missing_ranks(situation: Situation) -> range:
    """Node ranks of a gang of all nodes for each of which a pod is to wait; empty while none should."""
    at = asks_at(situation)
    is_time = at is not None and at <= situation.now
    return range(situation.spec.nodes, situation.wanted_nodes) if is_time else range(0)


def holders(situation: Situation) -> list[Pod]:
    """The pods that hold a place for the current attempt's missing nodes, in the order in which they got it."""
    ranks, attempt = missing_ranks(situation), situation.status.attempt
    held = [
        pod
        for pod in situation.gang.placeholders
        if pod.attempt == attempt and pod.rank in ranks and pod.node is not None and not is_over(pod)
    ]
    return sorted(held, key=placed_at)


def asks_again_at(situation: Situation, pod: Pod) -> float | None:
    """From when another pod is to wait for the place that this one has lost; None for one that has lost none.

    A node that has refused a pod may refuse the next one, too, so there is a wait between them.
    """
    return placed_at(pod) + situation.spec.deadlines.full_size_seconds if is_over(pod) else None


def placed_at(pod: Pod) -> float:
    """When it got its place, in seconds since the epoch."""
    return pod.placed or 0.0


def is_over(pod: Pod) -> bool:
    """Whether it holds its place no more: it is being deleted, or its node has refused or evicted it."""
    return pod.deletion is not None or pod.phase in ("Failed", "Succeeded")
