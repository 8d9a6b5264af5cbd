"""Stopping pods, and knowing that they have stopped.

A new attempt may start only when no process of an old one can still run. Deleting with grace 0 proves nothing: the
object goes at once and the process lives on for two seconds. So pods are deleted with a grace, one by one, and have
stopped when their object is gone, all their containers have ended, or their node is known to be lost.
"""

from collections.abc import Iterable

from ddpjob_operator.core.model import Action, DeletePod, LowerPodDeadline, Observed, Pod, ReadNode

#: Grace of a failed attempt's survivors. They block in a collective that can never end, so a longer grace only delays
#: the restart; the kubelet gives two seconds at least, and an object is gone 2.7 s after the request.
SURVIVOR_GRACE_SECONDS = 1
#: How long after its grace a pod that is still there makes us ask for its node.
OVERDUE_SECONDS = 1.0


def has_stopped(seen: Observed, pod: Pod) -> bool:
    """Whether no process of the pod can run any more."""
    if pod.deletion_deadline is not None and (pod.node is None or pod.node in seen.nodes_gone):
        return True  # it never had a node to run on, or that node is lost
    return pod.all_ended


def stop(seen: Observed, pods: Iterable[Pod], grace_seconds: int | None) -> tuple[Action, ...]:
    """What stops these pods; ended ones stay as evidence, with their logs. None is each pod's own grace."""
    actions: list[Action] = []
    for pod in pods:
        if pod.deletion_deadline is not None or has_stopped(seen, pod):
            continue
        if pod.exit is None:
            actions.append(DeletePod(name=pod.name, uid=pod.uid, grace_seconds=grace_seconds))
        elif pod.active_deadline_seconds != 1:  # its program has ended, a sidecar lives on
            actions.append(LowerPodDeadline(name=pod.name, uid=pod.uid))
    return tuple(actions)


def node_questions(pods: Iterable[Pod], now: float) -> tuple[ReadNode, ...]:
    """The nodes whose state would tell whether a pod that outlives its grace is lost."""
    overdue = (pod for pod in pods if pod.deletion_deadline is not None and not pod.all_ended and pod.node is not None)
    late = {pod.node for pod in overdue if (pod.deletion_deadline or 0) + OVERDUE_SECONDS <= now}
    return tuple(ReadNode(name=node) for node in sorted(node for node in late if node))


def next_overdue(pods: Iterable[Pod], now: float) -> float | None:
    """When the next of these pods will have outlived its grace."""
    times = (p.deletion_deadline + OVERDUE_SECONDS for p in pods if p.deletion_deadline is not None)
    return min((time for time in times if time > now), default=None)
