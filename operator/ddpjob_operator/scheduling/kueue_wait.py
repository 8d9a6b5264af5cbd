"""What a job that Kueue has not admitted waits for, by the Workloads and LocalQueues that the operator may read.

The operator needs no right on ClusterQueues, so it knows the limit of a quota only where nothing of it is free. Kueue looks at a
workload again when something becomes free, but not when others take more, so what it says is needed is the least. An operator
that watches some namespaces only does not know users in others.
"""

import functools
import heapq
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from ddpjob_operator.api import names
from ddpjob_operator.api.names import Reason
from ddpjob_operator.core.model import AllOf, Body, Kind, Observed, OwnedObject, Watched
from ddpjob_operator.core.untrusted import printable
from ddpjob_operator.scheduling.interface import Wait
from ddpjob_operator.scheduling.position import jobs_before, rounded
from ddpjob_operator.scheduling.quantities import BINARY, number

GROUP = "kueue.x-k8s.io"
#: How Kueue says what is missing (`pkg/scheduler/flavorassigner/flavorassigner.go`).
_MISSING = re.compile(r"insufficient unused quota for (\S+) in flavor (\S+), (\S+) more needed")
#: How it says that a job could not be admitted either if nothing else ran, which a changed number of nodes may cause.
_TOO_LARGE = re.compile(
    r"insufficient quota for (\S+) in flavor (\S+), previously considered podsets requests \(\S+\)"
    r" \+ current podset request \((\S+)\) > maximum capacity \((\S+)\)"
)
#: `<job>-<attempt>-<beginning of the uid>`
_GROUP_NAME = re.compile(r"(.+)-\d+-[0-9a-f]{4}")
#: Users of a quota that a message names.
_MAX_USERS = 3
#: Priority (the highest first), time of creation and uid.
_Position = tuple[int, str, str]


def workloads(version: str) -> Watched:
    """The watch of Workloads."""
    kind = Kind(api_version=f"{GROUP}/{version}", kind="Workload", plural="workloads")
    return Watched(kind=kind, labels="", trim=_without_templates, job_name=_job_of_workload)


def local_queues(version: str) -> Watched:
    """The watch of LocalQueues."""
    kind = Kind(api_version=f"{GROUP}/{version}", kind="LocalQueue", plural="localqueues")
    return Watched(kind=kind, labels="", job_name=lambda body: str(body["metadata"]["name"]))


class _Users:
    """Who uses how much of one resource of a ClusterQueue in one flavor."""

    def __init__(self) -> None:
        self.by_name: dict[str, Decimal] = {}

    @functools.cached_property
    def summary(self) -> tuple[str, str]:
        """How much is used in all, and the largest users; the second is empty without any."""
        largest = heapq.nsmallest(_MAX_USERS, self.by_name, key=lambda user: (-self.by_name[user], user))
        num_others = len(self.by_name) - len(largest)
        others = f" and {rounded(num_others)} more" if num_others else ""
        return _text(sum(self.by_name.values(), Decimal(0))), f"{', '.join(largest)}{others}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Queues:
    """All Workloads, sorted by what a job that waits asks of them."""

    workloads: Mapping[tuple[str, str], OwnedObject]
    cluster_queues: Mapping[tuple[str, str], str]
    """The ClusterQueue of each LocalQueue, by namespace and name."""
    waiting: Mapping[str, Sequence[_Position]]
    """The places of the Workloads that wait in each ClusterQueue, in their order."""
    users: Mapping[tuple[str, str, str], _Users]
    """By ClusterQueue, resource and flavor."""


@functools.cache
def _queues(version: str) -> Callable[[AllOf], _Queues]:
    """What sorts all Workloads of this version of Kueue's API; the same function each time, so that its result can be kept."""

    def build(all_of: AllOf) -> _Queues:
        known = list(all_of(workloads(version).kind))
        cluster_queues = {
            (queue.namespace, queue.name): str(queue.spec.get("clusterQueue", ""))
            for queue in all_of(local_queues(version).kind)
        }
        waiting: dict[str, list[_Position]] = {}
        users: dict[tuple[str, str, str], _Users] = {}
        for workload in known:
            if workload.spec["isWaiting"]:
                queue = cluster_queues.get((workload.namespace, workload.spec["queueName"]), "")
                waiting.setdefault(queue, []).append(workload.spec["position"])
            for resource, flavor, used in _usage(workload):
                by_name = users.setdefault((workload.spec["usesQuotaOf"], resource, flavor), _Users()).by_name
                user = f"{workload.namespace}/{workload.job_name}"
                by_name[user] = by_name.get(user, Decimal(0)) + used
        return _Queues(
            workloads={(workload.namespace, workload.name): workload for workload in known},
            cluster_queues=cluster_queues,
            waiting={queue: sorted(positions) for queue, positions in waiting.items()},
            users=users,
        )

    return build


def explain(observed: Observed, version: str, queue_name: str | None, group: str) -> Wait:
    """Why the group is not admitted, as one reason and one sentence."""
    kind, queues = workloads(version).kind, observed.index(_queues(version))
    found = (known for known in observed.objects if (known.kind, known.name) == (kind, group))
    own = next(found, None) or queues.workloads.get((observed.job.namespace, group))
    queue = f"queued in {queue_name or 'default'}"
    if own is None:
        return Wait(Reason.QUEUED, f"{queue}: Kueue has not made the workload {group} yet")
    if not own.spec["active"]:
        return Wait(
            Reason.QUEUED, f"{queue}: the workload {group} is deactivated; set its spec.active to true to admit it"
        )
    return Wait(Reason.QUEUED, printable(f"{queue}: {'; '.join(_obstacles(own, queues))}"))


def _obstacles(own: OwnedObject, queues: _Queues) -> Iterator[str]:
    if _is_true(own.status, "QuotaReserved"):
        checks = [c for c in own.status.get("admissionChecks") or () if c.get("state") != "Ready"]
        yield from (
            f"admission check {c['name']} is {c.get('state')}: {c.get('message', '')}".rstrip(": ") for c in checks
        )
        if not checks:
            yield "quota is reserved, and Kueue is removing the scheduling gates"
        return

    queue = queues.cluster_queues.get((own.namespace, own.spec["queueName"]), "")
    before = bisect_left(queues.waiting.get(queue, ()), own.spec["position"])
    if before:
        yield jobs_before(before)
    message = str(_condition(own.status, "QuotaReserved").get("message", ""))
    if missing := _MISSING.search(message):
        yield _quota(own, missing, queues, queue)
    elif too_large := _TOO_LARGE.search(message):
        resource, flavor, requested, most = too_large.groups()
        lack = f"{requested} requested, but the queue can have {most} at most in flavor {flavor}"
        yield f"quota {resource.rpartition('/')[2]}: {lack}; use fewer nodes or raise the quota"
    elif message:
        yield message
    elif not before:
        yield "Kueue has not considered it yet"


def _quota(own: OwnedObject, said: re.Match[str], queues: _Queues, queue: str) -> str:
    resource, flavor, missing = said.groups()
    name = resource.rpartition("/")[2]
    lack = f"at least {missing} more needed in flavor {flavor}"
    users = queues.users.get((queue, resource, flavor))
    if users is None:
        return f"quota {name}: {lack}"
    total, names = users.summary
    if number(missing) == _request(own, resource):  # nothing was free, so all that there is is used
        return f"quota {name}: {total} of {total} used by {names}"
    return f"quota {name}: {total} used by {names}, {lack}"


def _usage(workload: OwnedObject) -> Iterator[tuple[str, str, Decimal]]:
    """Resource, flavor and amount of what the Workload uses of the quota that it has."""
    if workload.spec["usesQuotaOf"] is None:
        return
    for assigned in (workload.status.get("admission") or {}).get("podSetAssignments") or ():
        usage = assigned.get("resourceUsage") or {}
        for resource, flavor in (assigned.get("flavors") or {}).items():
            if used := number(usage.get(resource, "0")):
                yield resource, flavor, used


def _request(workload: OwnedObject, resource: str) -> Decimal:
    requests = workload.status.get("resourceRequests") or ()
    return sum((number((r.get("resources") or {}).get(resource, "0")) for r in requests), Decimal(0))


def _condition(body: Body, type_: str) -> Body:
    """A condition in the status of a Workload; empty without it."""
    return next((found for found in body.get("conditions") or () if found["type"] == type_), {})


def _is_true(body: Body, type_: str) -> bool:
    return bool(_condition(body, type_).get("status") == "True")


def _text(number: Decimal) -> str:
    binary = next((unit for unit, size in reversed(BINARY.items()) if number >= size and number % size == 0), "")
    return f"{number / BINARY[binary]:f}{binary}" if binary else f"{number.normalize():f}"


def _without_templates(body: Body) -> Body:
    """A Workload without its pod templates, which are most of it, and with what is asked of each when another one waits."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    is_finished, is_active = _is_true(status, "Finished"), spec.get("active") is not False
    kept = {
        "queueName": spec.get("queueName", ""),
        "active": is_active,
        "isWaiting": is_active and not is_finished and not _is_true(status, "QuotaReserved"),
        "usesQuotaOf": None if is_finished else (status.get("admission") or {}).get("clusterQueue"),
        # Kueue considers workloads by priority, then by age.
        "position": (-int(spec.get("priority") or 0), str(metadata.get("creationTimestamp", "")), metadata["uid"]),
    }
    return {**body, "spec": kept, "status": _trimmed_status(status)}


def _trimmed_status(status: Body) -> Body:
    """What explanations read of it: the assignment of a topology alone may have thousands of entries."""
    admission = status.get("admission") or {}
    assigned = [
        {name: of_set[name] for name in ("flavors", "resourceUsage") if name in of_set}
        for of_set in admission.get("podSetAssignments") or ()
    ]
    kept = {name: status[name] for name in ("conditions", "resourceRequests", "admissionChecks") if name in status}
    return {**kept, "admission": {"podSetAssignments": assigned}}


def _job_of_workload(body: Body) -> str:
    """The job of a group's Workload; any other is about what it is named for."""
    metadata = body["metadata"]
    is_group = (metadata.get("annotations") or {}).get(names.KUEUE_IS_GROUP_WORKLOAD) == "true"
    of_a_job = _GROUP_NAME.fullmatch(metadata["name"]) if is_group else None
    return of_a_job[1] if of_a_job else str(metadata["name"])
