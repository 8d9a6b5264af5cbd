"""Stopping pods, and knowing that they have stopped.

A new attempt may start only when no process of an old one can still run. Deleting with grace 0 proves nothing: the
object goes at once and the process lives on for two seconds. So pods are deleted with a grace, one by one, and have
stopped when their object is gone, all their containers have ended, or their node is known to be lost.
"""

from collections.abc import Collection, Iterable, Sequence

from ddpjob_operator.api.names import ConditionType
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.actions import Action, DeletePod, DeletePods, LowerPodDeadline, ReadNode
from ddpjob_operator.core.model import Observed, Pod
from ddpjob_operator.core.times import soonest

#: Grace of the survivors of an attempt that failed by itself. They block in a collective that can never end, so a longer
#: grace only delays the restart; the kubelet gives two seconds at least, and an object is gone 2.7 s after the request.
SURVIVOR_GRACE_SECONDS = 1
#: How long after its grace the operator reads the node of a pod that still exists. With a grace of 1 s the object is gone
#: 2.7 to 4.1 s after the request, so every restart of a large gang would read all its nodes otherwise.
OVERDUE_SECONDS = 5.0
#: How long after its grace a pod is reported that still exists on a node that is not known to be lost.
TOO_LONG_SECONDS = 60.0
#: How long a kubelet may take beyond a pod's grace to end a pod whose deadline was lowered, before it is deleted.
KEPT_SECONDS = 30.0


def has_stopped(observed: Observed, pod: Pod, now: float) -> bool:
    """Whether no process of the pod can run any more."""
    return pod.all_ended or _is_lost(observed, pod, now)


def may_still_run(observed: Observed, pods: Iterable[Pod], now: float) -> list[Pod]:
    """Those of the pods of which a process may still run."""
    return [pod for pod in pods if not has_stopped(observed, pod, now)]


def stop(observed: Observed, pods: Iterable[Pod], grace_seconds: int | None, now: float) -> tuple[Action, ...]:
    """The actions that stop these pods. Pods that have ended are kept as evidence, with their logs.

    `grace_seconds` None is each pod's own grace.
    """
    actions: list[Action] = []
    for pod in pods:
        if pod.deletion is not None:
            # The object of a lost pod would stay for ever, and count in quotas.
            if _is_lost(observed, pod, now) and pod.node is not None:
                actions.append(DeletePod(name=pod.name, uid=pod.uid, grace_seconds=0))
        elif has_stopped(observed, pod, now):
            continue
        elif pod.exit is None or _too_late_to_keep(pod, _ended_at(pod, now), now):
            actions.append(DeletePod(name=pod.name, uid=pod.uid, grace_seconds=grace_seconds))
        elif pod.active_deadline_seconds != 1:  # its program has ended, a sidecar lives on
            actions.append(LowerPodDeadline(name=pod.name, uid=pod.uid))
    return tuple(actions)


def stop_with_own_grace(observed: Observed, pods: Sequence[Pod], now: float) -> tuple[Action, ...]:
    """The actions that stop these pods with their own grace: one request, unless it would also delete pods kept as evidence."""
    attempts = {pod.attempt for pod in pods}
    alive = all(pod.exit is None and pod.deletion is None and not pod.all_ended for pod in pods)
    if alive and len(attempts) == 1 and len(pods) == sum(pod.attempt in attempts for pod in observed.pods) > 1:
        return (DeletePods(attempt=attempts.pop()),)
    return stop(observed, pods, None, now)


def stop_and_keep_logs(observed: Observed, pods: Iterable[Pod], since: float, now: float) -> tuple[Action, ...]:
    """The actions that make the kubelets stop these pods, so that their objects and logs are kept.

    A pod that its kubelet has not stopped in time, counted from `since`, is deleted.
    """
    actions: list[Action] = []
    for pod in pods:
        is_late = _too_late_to_keep(pod, since, now)
        if pod.node is None and pod.deletion is None and not pod.all_ended:
            # No kubelet would end it, and there is no log to keep, unless it has got a node by now and this view is old.
            version = pod.version
            actions.append(DeletePod(name=pod.name, uid=pod.uid, grace_seconds=None, resource_version=version))
        elif pod.deletion is not None or has_stopped(observed, pod, now) or is_late:
            actions += stop(observed, [pod], None, now)
        elif pod.active_deadline_seconds != 1:
            actions.append(LowerPodDeadline(name=pod.name, uid=pod.uid))
    return tuple(actions)


def first_end_of_keeping(pods: Iterable[Pod], since: float) -> float | None:
    """When the first of these pods, whose deadlines were lowered at `since`, is deleted because it has not ended."""
    return min((since + pod.grace_seconds + KEPT_SECONDS for pod in pods), default=None)


def pod_terminating_too_long(pods: Iterable[Pod], now: float) -> Pod | None:
    """A pod that has outlived its grace for so long that the status reports it; None without one."""
    return next((pod for pod in pods if pod.is_past_grace(now, TOO_LONG_SECONDS)), None)


def node_lookups(status: DDPJobStatus, pods: Iterable[Pod], now: float) -> tuple[ReadNode, ...]:
    """The nodes whose state decides whether a pod that outlives its grace is lost, or why the cluster ended a pod.

    The second is of interest only until the record of that attempt is final; kept evidence asks for no node.
    """
    wanted = (pod for pod in pods if _is_overdue(pod, now) or (pod.disruption and _is_unexplained(status, pod)))
    nodes = {pod.node for pod in wanted if pod.node is not None}
    return tuple(ReadNode(name=node) for node in sorted(nodes))


def next_overdue(pods: Collection[Pod], now: float) -> float | None:
    """When the next of these pods will have outlived its grace, or have done so for too long."""
    deadlines = [pod.deletion.deadline for pod in pods if pod.deletion is not None]
    times = [deadline + late for deadline in deadlines for late in (OVERDUE_SECONDS, TOO_LONG_SECONDS)]
    times += (
        _ended_at(p, now) + p.grace_seconds + KEPT_SECONDS for p in pods if p.exit is not None and not p.all_ended
    )
    return soonest(times, now)


def _is_lost(observed: Observed, pod: Pod, now: float) -> bool:
    """Whether a deleted pod has no node to run on, or has outlived its grace on one that is gone.

    The pods of a node that is unreachable for a moment keep their grace to save their work.
    """
    if pod.deletion is None:
        return False
    return pod.node is None or (pod.node in observed.nodes_gone and _is_overdue(pod, now))


def _is_overdue(pod: Pod, now: float) -> bool:
    """Whether its object should be gone; also that of a pod whose containers have ended, which a kubelet removes."""
    return pod.is_past_grace(now, OVERDUE_SECONDS)


def _is_unexplained(status: DDPJobStatus, pod: Pod) -> bool:
    """Whether the record of the failure of the pod's attempt is still to be made, or may still get better."""
    if status.finished or status.condition(ConditionType.SUSPENDED):
        return False
    is_latest_failure = status.failure is not None and status.failure.attempt == pod.attempt == status.attempt - 1
    return pod.attempt == status.attempt or is_latest_failure


def _ended_at(pod: Pod, now: float) -> float:
    """When this process saw that the program had ended: the clock of a node may be minutes off."""
    return (pod.exit.seen or pod.exit.finished or now) if pod.exit else now


def _too_late_to_keep(pod: Pod, since: float, now: float) -> bool:
    return since + pod.grace_seconds + KEPT_SECONDS <= now
