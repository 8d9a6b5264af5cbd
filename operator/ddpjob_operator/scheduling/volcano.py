"""Gangs of Volcano: a PodGroup in a queue, and pods that name it and Volcano's scheduler.

Volcano admits a PodGroup from its queue (phase Inqueue) when the queue has `minResources` for it. Then it gives the pods their
nodes if all `minMember` of them can have one.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddpjob_operator.api import names
from ddpjob_operator.api.names import ProviderName, Reason
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.core.gang import Gang
from ddpjob_operator.core.model import AllOf, Body, Job, Kind, Observed, OwnedObject, Watched
from ddpjob_operator.core.scheduler_message import scheduler_message
from ddpjob_operator.core.untrusted import printable, tail
from ddpjob_operator.scheduling.affinity import attract
from ddpjob_operator.scheduling.interface import Candidate, Provider, Wait
from ddpjob_operator.scheduling.pod_groups import (
    PodGroups,
    group_name,
    no_nodes,
    partly_placed,
    rights_on_groups,
    scheduler_of,
)
from ddpjob_operator.scheduling.position import jobs_before, rounded
from ddpjob_operator.scheduling.quantities import requests_of_gang

GROUP = "scheduling.volcano.sh"
#: The queue of a PodGroup that names none.
DEFAULT_QUEUE = "default"
#: A message of counts alone, which says no cause.
_COUNTS = re.compile(r"\d+/\d+ tasks in gang unschedulable: pod group is not ready[^.]*")
#: Before it a message repeats how many pods are in which state (`FitError` in `pkg/scheduler/api/job_info.go`).
_CAUSE = re.compile(r"Origin reason is (?:\S+: )?(.+)", re.DOTALL)
#: Phases of groups that have left the queue; Unknown: some of the pods run, of which another is replaced or has ended
#: (`getPodGroupPhase` in `pkg/scheduler/framework/session.go`).
_ADMITTED = frozenset({"Inqueue", "Running", "Unknown"})
#: Jobs that a message names.
_MAX_NAMED = 3


class Volcano(PodGroups):
    """PodGroups of scheduling.volcano.sh/v1beta1."""

    name = ProviderName.VOLCANO
    scheduler = "volcano"
    kind = Kind(api_version=f"{GROUP}/v1beta1", kind="PodGroup", plural="podgroups")

    @property
    def watched(self) -> Sequence[Watched]:
        """The PodGroups of jobs, with their age."""
        return (Watched(kind=self.kind, trim=_with_position),)

    def group_spec(self, spec: DDPJobSpec, pod: Callable[[], Body]) -> Body:
        """The gang, or minNodes of it, and what these pods request together, for the quota of the queue."""
        asked, rendered = spec.scheduling, pod()
        priority = rendered["spec"].get("priorityClassName")
        return {
            "minMember": spec.least_nodes,
            "minResources": requests_of_gang(rendered, spec.least_nodes),
            "queue": asked.queue_name or DEFAULT_QUEUE,
            **({"priorityClassName": priority} if priority else {}),
        }

    def decorate(self, pod: dict[str, Any], job: Job, spec: DDPJobSpec, rank: int) -> None:  # noqa: ARG002 the interface's
        """Name the group and the scheduler, unless the template names another one. Topology is an affinity of the pods."""
        pod["metadata"]["annotations"][names.VOLCANO_GROUP_NAME] = group_name(job)
        pod["spec"]["schedulerName"] = scheduler_of(spec, self.scheduler)
        if (topology := spec.scheduling.topology) is not None:
            attract(pod, topology)

    def explain_gang(self, observed: Observed, spec: DDPJobSpec, gang: Gang) -> Wait | None:
        """What Volcano says of the PodGroup, as long as some pod has no node."""
        if gang.all_scheduled:
            return None
        scheduler = scheduler_of(spec, self.scheduler)
        if gang.num_placed:
            return partly_placed(gang, scheduler)
        group = self.current(observed)
        phase = group.status.get("phase") if group is not None else None
        queue = spec.scheduling.queue_name or DEFAULT_QUEUE
        if group is None or phase is None:
            return Wait(
                Reason.STARTING, f"the scheduler {scheduler} has not considered PodGroup {group_name(observed.job)} yet"
            )
        said = _message(group.status)
        if phase == "Pending":
            queues = observed.index(_queues)
            ahead = _ahead(queues.admitted.get(queue, ()))
            why = scheduler_message(spec, said) if said else f"Volcano has not admitted the PodGroup{_needs(group)}"
            before = bisect_left(queues.waiting.get(_class_of(group), ()), group.spec["position"])
            jobs = f"{jobs_before(before)}; " if before else ""
            return Wait(Reason.QUEUED, f"queued in {queue}{ahead}: {jobs}{why}")
        return no_nodes(spec, [said] if said else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Queues:
    """All PodGroups that the operator watches, sorted by what a job that waits asks of them."""

    admitted: Mapping[object, Sequence[str]]
    """By queue, the jobs that it has admitted."""
    waiting: Mapping[tuple[object, object], Sequence[tuple[str, str]]]
    """The places of the jobs that wait in the same queue with the same priority, in their order."""


def _queues(all_of: AllOf) -> _Queues:
    admitted: dict[object, list[str]] = {}
    waiting: dict[tuple[object, object], list[tuple[str, str]]] = {}
    for group in all_of(Volcano.kind):
        if group.status.get("phase") in _ADMITTED:
            admitted.setdefault(group.spec.get("queue"), []).append(f"{group.namespace}/{group.job_name}")
        elif group.status.get("phase") == "Pending":
            waiting.setdefault(_class_of(group), []).append(group.spec["position"])
    return _Queues(
        admitted={queue: sorted(jobs) for queue, jobs in admitted.items()},
        waiting={group: sorted(positions) for group, positions in waiting.items()},
    )


def _class_of(group: OwnedObject) -> tuple[object, object]:
    """Queue and priority."""
    return group.spec.get("queue"), group.spec.get("priorityClassName")


def _ahead(admitted: Sequence[str]) -> str:
    """The jobs that the queue has admitted, of those that the operator watches."""
    more = f" and {rounded(len(admitted) - _MAX_NAMED)} more" if len(admitted) > _MAX_NAMED else ""
    return f" behind {', '.join(admitted[:_MAX_NAMED])}{more}" if admitted else ""


def _with_position(body: Body) -> Body:
    """A PodGroup with what decides between those of one queue and priority (`JobOrderFn` in Volcano's session_plugins.go)."""
    metadata = body["metadata"]
    position = (str(metadata.get("creationTimestamp", "")), str(metadata["uid"]))
    return {**body, "spec": {**(body.get("spec") or {}), "position": position}}


def _needs(group: OwnedObject) -> str:
    needed = ", ".join(f"{name}: {amount}" for name, amount in sorted((group.spec.get("minResources") or {}).items()))
    return printable(f", which needs {needed}") if needed else ""


def _message(status: Mapping[str, Any]) -> str:
    """Why the PodGroup is not scheduled, if it says so."""
    conditions = status.get("conditions") or ()
    unschedulable = [c for c in conditions if (c.get("type"), c.get("status")) == ("Unschedulable", "True")]
    message = tail(str(unschedulable[-1].get("message", ""))) if unschedulable else ""
    if _COUNTS.fullmatch(message):
        return ""
    cause = _CAUSE.search(message)
    return cause[1] if cause else message


_VERSIONS: Mapping[str, Provider] = {"v1beta1": Volcano()}
CANDIDATE = Candidate(name=ProviderName.VOLCANO, group=GROUP, versions=_VERSIONS, rights=rights_on_groups(GROUP))
