"""Spare pods: pods of a running gang that have imported everything and wait, so that a lost pod is replaced without a container start.

For the scheduler they are pods of ranks. For everything else they are none until the status names one as the successor of a lost
pod: which one takes over is decided once, with the replacement, and never changes. Its labels and its assignment follow.
"""

from collections.abc import Collection, Iterable

from ddpjob_operator.api.names import ProviderName
from ddpjob_operator.core.failure.cause import End
from ddpjob_operator.core.failure.classes import TAKEN_AWAY
from ddpjob_operator.core.model import Job, Pod
from ddpjob_operator.core.render.pods import waits_for_pods
from ddpjob_operator.core.situation import Situation
from ddpjob_operator.core.untrusted import printable

#: A spare pod that has ended is replaced this long after it got its node: the next one may end in the same way.
RETRY_SECONDS = 300.0


def name_of_spare(job: Job, number: int) -> str:
    """The name of the spare pod of this number, which no pod of a rank has, of whichever job.

    A spare pod that takes over keeps its name, and the next one needs another: so it ends with the number of replacements.
    """
    num_replaced = sum(pod.replacement for pod in job.status.replaced_pods)
    return f"{_prefix(job)}{number}-{num_replaced}"


def is_name_of_spare(job: Job, name: str) -> bool:
    """Whether it is the name of a spare pod of the current attempt."""
    return name.startswith(_prefix(job))


def _prefix(job: Job) -> str:
    return f"{job.name}-{job.status.attempt}-spare"


def num_wanted(situation: Situation) -> int:
    """How many the job has while it runs; none where they would help nobody or take a place from a rank."""
    status, spec, gang = situation.status, situation.spec, situation.gang
    is_of_use = (
        spec.restart.in_place
        and spec.nodes > 1
        and bool(gang.current)
        and all(pod.is_supervised for pod in gang.current.values())
        and gang.first_success is None
        # A rank that finds no node may get that of a spare pod.
        and not gang.is_refused_a_node
        and status.shrunk_from is None
        # No scheduling provider knows of them, and one machine needs none.
        and situation.provider.name == situation.next_provider.name == ProviderName.NONE
        and not situation.observed.one_machine
    )
    return spec.restart.spares if is_of_use else 0


def missing(situation: Situation) -> list[int]:
    """The numbers of the spare pods to create. They come after the gang, which needs the nodes more.

    None while no counted restart is left: a new pod of a rank would not wait for others then, either.
    """
    if not situation.gang.all_up or not waits_for_pods(situation.job, situation.spec):
        return []
    existing = {number_of(situation, pod) for pod in situation.gang.spares}
    return [number for number in range(num_wanted(situation)) if number not in existing]


def needless(situation: Situation) -> list[Pod]:
    """Those that the job should not have, and those that have ended some time ago."""
    wanted = num_wanted(situation)
    named = {pod.spare for pod in situation.status.replaced_pods}
    seen: set[int] = set()
    found = []
    for pod in situation.gang.spares:
        number, again = number_of(situation, pod), asks_again_at(pod)
        is_one_too_many = number >= wanted or number in seen
        if (is_one_too_many and pod.name not in named) or (again is not None and again <= situation.now):
            found.append(pod)
        seen.add(number)
    return found


def waiting(situation: Situation) -> list[Pod]:
    """Those that can take over."""
    return [pod for pod in situation.gang.spares if _can_take_over(pod)]


def state(situation: Situation) -> str:
    """What the status says of them while the job runs; empty for a job that has none."""
    wanted = num_wanted(situation)
    if not wanted:
        return ""
    ready = waiting(situation)
    obstacle = next((why for pod in situation.gang.spares if (why := _obstacle(pod))), "")
    text = f"{min(len(ready), wanted)} of {wanted} spare pods can replace a lost pod"
    return f"{text} ({printable(obstacle)})" if obstacle else text


def choose_successors(situation: Situation, ends: Iterable[End], ranks: Collection[int]) -> dict[int, str]:
    """The names of the spare pods that are to take over, by lost node rank, as far as there are enough."""
    # What took a pod away may be about to take the others of its node.
    nodes = {end.node for end in ends if end.reason in TAKEN_AWAY}
    going = {pod.name for pod in needless(situation)}
    free = [pod.name for pod in waiting(situation) if pod.node not in nodes and pod.name not in going]
    return dict(zip(sorted(ranks), free, strict=False))


def lost_ranks(situation: Situation) -> set[int]:
    """The node ranks whose pods were to be made of spare pods that can no longer take over, or have done so.

    One that does not run yet, by what this process has seen, ran for the process that named it.
    """
    can = {pod.name for pod in situation.gang.spares if not _ends(pod) and not pod.is_cut_off}
    return {pod.rank for pod in situation.status.replaced_pods if pod.spare is not None and pod.spare not in can}


def asks_again_at(pod: Pod) -> float | None:
    """From when this spare pod, which has ended, is replaced; None for one that has not."""
    return (pod.placed or 0.0) + RETRY_SECONDS if _has_ended(pod) else None


def number_of(situation: Situation, pod: Pod) -> int:
    """Its number among the spare pods of the job: they are labelled as ranks that the gang does not have."""
    return pod.rank - situation.spec.nodes


def _obstacle(pod: Pod) -> str:
    """Why it cannot take over, where that may last; empty for one that can or that is starting."""
    if pod.waiting:
        return pod.waiting.message or pod.waiting.reason
    if pod.exit:
        return f"pod {pod.name} ended with exit code {pod.exit.code}: {pod.exit.message}"
    if pod.is_cut_off:
        return f"node {pod.node} of pod {pod.name} is not ready"
    return f"pod {pod.name} is {pod.phase}: {pod.reason}: {pod.message}" if asks_again_at(pod) else ""


def _can_take_over(pod: Pod) -> bool:
    return pod.running and pod.is_started and not pod.is_cut_off and not _ends(pod)


def _ends(pod: Pod) -> bool:
    return _has_ended(pod) or pod.deletion is not None or bool(pod.disruption)


def _has_ended(pod: Pod) -> bool:
    return pod.phase in ("Failed", "Succeeded") or pod.exit is not None
