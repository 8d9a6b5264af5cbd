"""What a job that Kueue has not admitted waits for, by the Workloads and LocalQueues that the operator may read.

The operator needs no right on ClusterQueues, so it knows the limit of a quota only where nothing of it is free. Kueue looks at a
workload again when something becomes free, but not when others take more, so what it says is needed is the least. An operator
that watches some namespaces only does not know users in others.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from ddpjob_operator.api import names
from ddpjob_operator.api.names import Reason
from ddpjob_operator.core.model import Body, Kind, Observed, OwnedObject, Watched
from ddpjob_operator.core.untrusted import printable
from ddpjob_operator.scheduling.interface import Wait
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


def workloads(version: str) -> Watched:
    """The watch of Workloads."""
    kind = Kind(api_version=f"{GROUP}/{version}", kind="Workload", plural="workloads")
    return Watched(kind=kind, labels="", trim=_without_templates, job_name=_job_of_workload)


def local_queues(version: str) -> Watched:
    """The watch of LocalQueues."""
    kind = Kind(api_version=f"{GROUP}/{version}", kind="LocalQueue", plural="localqueues")
    return Watched(kind=kind, labels="", job_name=lambda body: str(body["metadata"]["name"]))


def explain(observed: Observed, version: str, queue_name: str | None, group: str) -> Wait:
    """Why the group is not admitted, as one reason and one sentence."""
    namespace = observed.job.namespace
    known = list(observed.all_of(workloads(version).kind))
    cluster_queues = {
        (queue.namespace, queue.name): str(queue.spec.get("clusterQueue", ""))
        for queue in observed.all_of(local_queues(version).kind)
    }
    own = next((found for found in known if (found.namespace, found.name) == (namespace, group)), None)
    queue = f"queued in {queue_name or 'default'}"
    if own is None:
        return Wait(Reason.QUEUED, f"{queue}: Kueue has not made the workload {group} yet")
    if not own.spec["active"]:
        return Wait(
            Reason.QUEUED, f"{queue}: the workload {group} is deactivated; set its spec.active to true to admit it"
        )
    return Wait(Reason.QUEUED, printable(f"{queue}: {'; '.join(_obstacles(own, known, cluster_queues))}"))


def _obstacles(
    own: OwnedObject, known: Sequence[OwnedObject], cluster_queues: Mapping[tuple[str, str], str]
) -> Iterator[str]:
    if _is_true(own.status, "QuotaReserved"):
        checks = [c for c in own.status.get("admissionChecks") or () if c.get("state") != "Ready"]
        yield from (
            f"admission check {c['name']} is {c.get('state')}: {c.get('message', '')}".rstrip(": ") for c in checks
        )
        if not checks:
            yield "quota is reserved, and Kueue is removing the scheduling gates"
        return

    queue, position = cluster_queues.get((own.namespace, own.spec["queueName"]), ""), own.spec["position"]
    before = sum(
        workload.spec["isWaiting"]
        and workload.spec["position"] < position
        and cluster_queues.get((workload.namespace, workload.spec["queueName"])) == queue
        for workload in known
    )
    if before:
        yield f"{before} {'job' if before == 1 else 'jobs'} before it"
    message = str(_condition(own.status, "QuotaReserved").get("message", ""))
    if missing := _MISSING.search(message):
        yield _quota(own, missing, known, queue)
    elif too_large := _TOO_LARGE.search(message):
        resource, flavor, requested, most = too_large.groups()
        lack = f"{requested} requested, but the queue can have {most} at most in flavor {flavor}"
        yield f"quota {resource.rpartition('/')[2]}: {lack}; use fewer nodes or raise the quota"
    elif message:
        yield message
    elif not before:
        yield "Kueue has not considered it yet"


def _quota(own: OwnedObject, said: re.Match[str], known: Sequence[OwnedObject], queue: str) -> str:
    resource, flavor, missing = said.groups()
    name = resource.rpartition("/")[2]
    users: dict[str, Decimal] = {}
    for workload in known:
        if workload.spec["usesQuotaOf"] == queue and (used := _usage(workload, resource, flavor)):
            user = f"{workload.namespace}/{workload.job_name}"
            users[user] = users.get(user, Decimal(0)) + used
    lack = f"at least {missing} more needed in flavor {flavor}"
    if not users:
        return f"quota {name}: {lack}"
    largest = sorted(users, key=lambda user: (-users[user], user))
    more = f" and {len(largest) - _MAX_USERS} more" if len(largest) > _MAX_USERS else ""
    by, total = f"used by {', '.join(largest[:_MAX_USERS])}{more}", _text(sum(users.values(), Decimal(0)))
    if number(missing) == _request(own, resource):  # nothing was free, so all that there is is used
        return f"quota {name}: {total} of {total} {by}"
    return f"quota {name}: {total} {by}, {lack}"


def _usage(workload: OwnedObject, resource: str, flavor: str) -> Decimal:
    assignments = (workload.status.get("admission") or {}).get("podSetAssignments") or ()
    return sum(
        (
            number((assigned.get("resourceUsage") or {}).get(resource, "0"))
            for assigned in assignments
            if (assigned.get("flavors") or {}).get(resource) == flavor
        ),
        Decimal(0),
    )


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
    return {**body, "spec": kept}


def _job_of_workload(body: Body) -> str:
    """The job of a group's Workload; any other is about what it is named for."""
    metadata = body["metadata"]
    is_group = (metadata.get("annotations") or {}).get(names.KUEUE_IS_GROUP_WORKLOAD) == "true"
    of_a_job = _GROUP_NAME.fullmatch(metadata["name"]) if is_group else None
    return of_a_job[1] if of_a_job else str(metadata["name"])
