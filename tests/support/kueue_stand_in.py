"""A stand-in for Kueue that does to pod groups what the operator relies on, and nothing else; run it with KUBECONFIG set.

Each function names the file of Kueue's source (v0.20 development, August 2026) that it follows. Left out, among others:
flavors, cohorts, topologies, admission checks, different pods in one group, and requeueing after a time.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ddpjob_operator.transport.access import load_access
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ConflictError, NotFoundError
from ddpjob_operator.transport.resources import PODS, Resource

API = "kueue.x-k8s.io/v1beta2"
PREFIX = "kueue.x-k8s.io/"
MANAGED, GATE = f"{PREFIX}managed", f"{PREFIX}admission"
GPU = "nvidia.com/gpu"
WORKLOADS, LOCAL_QUEUES, CLUSTER_QUEUES = (
    Resource.of_version(API, plural) for plural in ("workloads", "localqueues", "clusterqueues")
)
Body = dict[str, Any]


def definitions() -> list[Body]:
    """CustomResourceDefinitions that accept everything (`config/components/crd/bases`)."""
    kinds = {
        "Workload": "Namespaced",
        "LocalQueue": "Namespaced",
        "ClusterQueue": "Cluster",
        "ResourceFlavor": "Cluster",
    }
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1beta2", "served": True, "storage": True, "subresources": {"status": {}}}
    version["schema"] = {"openAPIV3Schema": anything}
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{kind.lower()}s.kueue.x-k8s.io"},
            "spec": {
                "group": "kueue.x-k8s.io",
                "scope": scope,
                "names": {"kind": kind, "plural": f"{kind.lower()}s", "singular": kind.lower()},
                "versions": [version],
            },
        }
        for kind, scope in kinds.items()
    ]


def admission() -> list[Body]:
    """Each new pod of a queue gets a label, a finalizer and a gate (`Default` in `pkg/controller/jobs/pod/pod_webhook.go`)."""
    metadata = f"Object.metadata{{finalizers: ['{MANAGED}'], labels: {{'{MANAGED}': 'true'}}}}"
    gates = f"Object.spec{{schedulingGates: [Object.spec.schedulingGates{{name: '{GATE}'}}]}}"
    mutation = {"expression": f"Object{{metadata: {metadata}, spec: {gates}}}"}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    of_a_queue = f"'{PREFIX}queue-name' in object.metadata.?labels.orValue({{}})"
    name = {"name": "kueue-stand-in"}
    kind = "MutatingAdmissionPolicy"
    return [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": name,
            "spec": {
                "matchConstraints": {"resourceRules": [rule]},
                "matchConditions": [{"name": "of-a-queue", "expression": of_a_queue}],
                "reinvocationPolicy": "Never",
                "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": mutation}],
            },
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"{kind}Binding",
            "metadata": name,
            "spec": {"policyName": "kueue-stand-in"},
        },
    ]


class Group:
    """The pods of one group, and its Workload."""

    def __init__(self, pods: Sequence[Body], workload: Body | None) -> None:
        self.workload = workload
        self.name = pods[0]["metadata"]["labels"][f"{PREFIX}pod-group-name"]
        self.namespace = pods[0]["metadata"]["namespace"]
        self.total = int(pods[0]["metadata"]["annotations"][f"{PREFIX}pod-group-total-count"])
        # `sortActivePods` in `pkg/controller/jobs/pod/pod_controller.go`: what the group keeps comes first.
        self.pods = sorted(pods, key=lambda pod: (MANAGED not in _finalizers(pod), _is_gated(pod), _age(pod)))
        self.active = [pod for pod in self.pods if _is_runnable_or_succeeded(pod)]
        self.inactive = [pod for pod in self.pods if not _is_runnable_or_succeeded(pod)]

    @property
    def is_finished(self) -> bool:
        """All have succeeded, or none runs and one says that it is not replaced (`Finished` in pod_controller.go)."""
        succeeded = sum(_phase(pod) == "Succeeded" for pod in self.pods)
        closed = any(_annotations(pod).get(f"{PREFIX}retriable-in-group") == "false" for pod in self.pods)
        ended = all(_phase(pod) in ("Succeeded", "Failed") for pod in self.pods)
        return succeeded == self.total or (ended and closed)

    @property
    def request(self) -> int:
        """What its pods request of the only resource."""
        limits = (pod["spec"]["containers"][0].get("resources", {}).get("limits", {}) for pod in self.pods[:1])
        return self.total * sum(int(limit.get(GPU, 0)) for limit in limits)


class StandIn:
    """Brings all groups forward, again and again."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.step()
            await asyncio.sleep(0.05)

    async def step(self) -> None:
        """One look at everything."""
        workloads = {_key(workload): workload for workload in await self._all(WORKLOADS)}
        members: dict[tuple[str, str], list[Body]] = {}
        for pod in await self._all(PODS):
            if (name := pod["metadata"].get("labels", {}).get(f"{PREFIX}pod-group-name")) and _is_managed(pod):
                members.setdefault((pod["metadata"]["namespace"], name), []).append(pod)
        groups = [Group(pods, workloads.get(key)) for key, pods in members.items()]
        for group in groups:
            with contextlib.suppress(ConflictError, NotFoundError):  # it has changed since it was listed
                await self._reconcile(group)
        waiting = [group for group in groups if group.workload and not _is_true(group.workload, "Finished")]
        with contextlib.suppress(ConflictError, NotFoundError):
            await self._schedule(waiting)

    async def _reconcile(self, group: Group) -> None:
        """The steps of `ReconcileGenericJob` in `pkg/controller/jobframework/reconciler.go`, for pod groups."""
        workload = group.workload
        if workload is None:
            await self._make_workload(group)
        elif _is_true(workload, "Finished"):
            await self._finalize(group.pods)
        elif group.is_finished:
            await self._condition(workload, "Finished", "True", "Succeeded", "Pods have ended.")
        else:
            await self._own(workload, group)
            await self._replace(group)
            absent = len(group.active) < group.total
            if absent or _condition(workload, "WaitingForReplacementPods"):
                await self._condition(workload, "WaitingForReplacementPods", str(absent), "PodsFailed", "")
            if _is_true(workload, "Evicted"):
                await self._stop(group, workload)
            elif _is_true(workload, "Admitted"):
                await self._ungate(group.active)

    async def _make_workload(self, group: Group) -> None:
        """Once all declared pods exist (`ConstructComposableWorkload` in pod_controller.go); it is named like the group."""
        await self._finalize(group.inactive)
        if len(group.active) < group.total:
            return
        labels = group.pods[0]["metadata"]["labels"]
        body = {
            "apiVersion": API,
            "kind": "Workload",
            "metadata": {
                "name": group.name,
                "annotations": {f"{PREFIX}is-group-workload": "true"},
                "ownerReferences": _owners(group.pods),
            },
            "spec": {
                "queueName": labels[f"{PREFIX}queue-name"],
                "priority": group.pods[0]["spec"].get("priority", 0),
                "active": True,
                "podSets": [{"name": _annotations(group.pods[0])[f"{PREFIX}role-hash"], "count": group.total}],
            },
        }
        await self._client.create(WORKLOADS, group.namespace, body)

    async def _own(self, workload: Body, group: Group) -> None:
        """Its pods own the Workload, which goes with the last of them (`EnsureWorkloadOwnedByAllMembers` in pod_controller.go)."""
        known = {owner["uid"] for owner in workload["metadata"].get("ownerReferences", ())}
        if new := [owner for owner in _owners(group.pods) if owner["uid"] not in known]:
            owners = [*workload["metadata"].get("ownerReferences", ()), *new]
            await self._client.merge_patch(
                WORKLOADS, group.namespace, group.name, {"metadata": {"ownerReferences": owners}}
            )

    async def _replace(self, group: Group) -> None:
        """Delete what is too many, and let go of pods that others have replaced (`FindMatchingWorkloads` in pod_controller.go)."""
        for pod in group.active[group.total :]:
            await self._finalize([pod])
            if "deletionTimestamp" not in pod["metadata"]:
                await self._client.delete(PODS, group.namespace, pod["metadata"]["name"], uid=pod["metadata"]["uid"])
        num_replaced = len(group.inactive) + len(group.active) - group.total
        if num_replaced > 0:
            await self._finalize(group.inactive[-num_replaced:])

    async def _stop(self, group: Group, workload: Body) -> None:
        """Say why and delete what runs, with its own grace (`Stop` in pod_controller.go); then the quota is free."""
        evicted = _condition(workload, "Evicted")
        for pod in group.pods:
            if "deletionTimestamp" in pod["metadata"] or _is_gated(pod) or _phase(pod) in ("Succeeded", "Failed"):
                continue
            name = pod["metadata"]["name"]
            reason = f"WorkloadEvictedDueTo{evicted['reason']}"
            conditions = _with(
                pod["status"].get("conditions", ()), "TerminationTarget", "True", reason, evicted["message"]
            )
            await self._client.merge_patch(
                PODS, group.namespace, name, {"status": {"conditions": conditions}}, subresource="status"
            )
            await self._client.delete(PODS, group.namespace, name, uid=pod["metadata"]["uid"])
        if _is_true(workload, "QuotaReserved") and not any(_phase(pod) == "Running" for pod in group.pods):
            status = {"admission": None, "conditions": workload["status"]["conditions"]}
            for type_ in ("QuotaReserved", "Admitted"):
                status["conditions"] = _with(status["conditions"], type_, "False", "Pending", evicted["message"])
            await self._status(workload, status)

    async def _ungate(self, pods: Sequence[Body]) -> None:
        """`Run` in pod_controller.go."""
        for pod in pods:
            if _is_gated(pod):
                gates = [gate for gate in pod["spec"]["schedulingGates"] if gate["name"] != GATE]
                await self._patch_pod(pod, {"spec": {"schedulingGates": gates or None}})

    async def _finalize(self, pods: Sequence[Body]) -> None:
        """Remove the finalizers of these pods (`removePodFinalizers` in pod_controller.go)."""
        for pod in pods:
            if MANAGED in _finalizers(pod):
                left = [name for name in _finalizers(pod) if name != MANAGED]
                await self._patch_pod(pod, {"metadata": {"finalizers": left or None}})

    async def _schedule(self, groups: Sequence[Group]) -> None:
        """Admit in the order of priority and age, preempt what has a lower priority (`pkg/scheduler/scheduler.go`)."""
        queues = {_key(queue): queue["spec"]["clusterQueue"] for queue in await self._all(LOCAL_QUEUES)}
        limits = {queue["metadata"]["name"]: _quota(queue) for queue in await self._all(CLUSTER_QUEUES)}
        for group in sorted(groups, key=_order):
            workload = group.workload
            assert workload is not None, "the caller passes groups with one"
            replaced = not _is_true(workload, "WaitingForReplacementPods")
            queue = queues.get((group.namespace, workload["spec"]["queueName"]))
            if queue is None or queue not in limits or _is_true(workload, "QuotaReserved") or not replaced:
                continue
            users = [other for other in groups if _used(other, queue)]
            missing = group.request - (limits[queue] - sum(_used(other, queue) for other in users))
            if group.request > limits[queue]:
                await self._refuse(
                    group,
                    workload,
                    f"insufficient quota for {GPU} in flavor default, previously considered podsets requests (0)"
                    f" + current podset request ({group.request}) > maximum capacity ({limits[queue]})",
                )
            elif missing > 0:
                why = f"insufficient unused quota for {GPU} in flavor default, {missing} more needed"
                await self._refuse(group, workload, why)
                await self._preempt(group, users)
            else:
                await self._admit(group, workload, queue)

    async def _refuse(self, group: Group, workload: Body, why: str) -> None:
        """The messages are those of `fitsResourceQuota` in `pkg/scheduler/flavorassigner/flavorassigner.go`."""
        pod_set = workload["spec"]["podSets"][0]["name"]
        message = f"couldn't assign flavors to pod set {pod_set}: {why}"
        requests = [{"name": pod_set, "resources": {GPU: str(group.request)}}]
        conditions = _with(
            workload.get("status", {}).get("conditions", ()), "QuotaReserved", "False", "Pending", message
        )
        if conditions != workload.get("status", {}).get("conditions"):
            await self._status(workload, {"conditions": conditions, "resourceRequests": requests})

    async def _preempt(self, group: Group, users: Sequence[Group]) -> None:
        """Evict one of lower priority (`pkg/scheduler/preemption`)."""
        assert group.workload is not None, "it waits for quota"
        priority = group.workload["spec"]["priority"]
        for other in users:
            assert other.workload is not None, "it uses quota"
            if other.workload["spec"]["priority"] < priority and not _is_true(other.workload, "Evicted"):
                message = f"Preempted to accommodate a workload (UID: {group.workload['metadata']['uid']})"
                await self._condition(other.workload, "Evicted", "True", "Preempted", message)
                return

    async def _admit(self, group: Group, workload: Body, queue: str) -> None:
        conditions = workload.get("status", {}).get("conditions", ())
        for type_, status in (("QuotaReserved", "True"), ("Admitted", "True"), ("Evicted", "False")):
            if status == "True" or _condition(workload, type_):
                conditions = _with(conditions, type_, status, type_, "")
        usage = {"name": "main", "flavors": {GPU: "default"}, "resourceUsage": {GPU: str(group.request)}}
        admitted = {"clusterQueue": queue, "podSetAssignments": [usage]}
        await self._status(workload, {"conditions": conditions, "admission": admitted, "resourceRequests": None})

    async def _condition(self, workload: Body, type_: str, status: str, reason: str, message: str) -> None:
        if (found := _condition(workload, type_)) and found["status"] == status:
            return
        conditions = _with(workload.get("status", {}).get("conditions", ()), type_, status, reason, message)
        await self._status(workload, {"conditions": conditions})

    async def _status(self, workload: Body, status: Mapping[str, Any]) -> None:
        namespace, name = _key(workload)
        version = {"resourceVersion": workload["metadata"]["resourceVersion"]}
        patch = {"metadata": version, "status": status}
        answer = await self._client.merge_patch(WORKLOADS, namespace, name, patch, subresource="status")
        workload |= answer

    async def _patch_pod(self, pod: Body, patch: Body) -> None:
        namespace, name = _key(pod)
        metadata = {"uid": pod["metadata"]["uid"], **patch.get("metadata", {})}
        await self._client.merge_patch(PODS, namespace, name, {**patch, "metadata": metadata})

    async def _all(self, resource: Resource) -> list[Body]:
        return [dict(item) async for page in self._client.pages(resource, None) for item in page.items]


def _is_runnable_or_succeeded(pod: Body) -> bool:
    """`isPodRunnableOrSucceeded` in pod_controller.go: a pod that has succeeded is a member for good."""
    if "deletionTimestamp" in pod["metadata"] and "nodeName" not in pod["spec"]:
        return False
    return _phase(pod) != "Failed"


def _order(group: Group) -> tuple[int, str, str]:
    assert group.workload is not None, "the caller passes groups with one"
    metadata = group.workload["metadata"]
    return (-group.workload["spec"]["priority"], metadata["creationTimestamp"], metadata["name"])


def _used(group: Group, queue: str | None) -> int:
    admission = (group.workload or {}).get("status", {}).get("admission") or {}
    return group.request if admission.get("clusterQueue") == queue else 0


def _quota(queue: Body) -> int:
    (group,) = queue["spec"]["resourceGroups"]
    return sum(int(limit["nominalQuota"]) for limit in group["flavors"][0]["resources"])


def _key(body: Body) -> tuple[str, str]:
    return body["metadata"]["namespace"], body["metadata"]["name"]


def _age(pod: Body) -> str:
    return str(pod["metadata"]["creationTimestamp"])


def _annotations(pod: Body) -> Mapping[str, str]:
    return pod["metadata"].get("annotations") or {}


def _finalizers(pod: Body) -> Sequence[str]:
    return pod["metadata"].get("finalizers") or ()


def _is_managed(pod: Body) -> bool:
    return bool(pod["metadata"]["labels"].get(MANAGED) == "true")


def _is_gated(pod: Body) -> bool:
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates") or ())


def _phase(pod: Body) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def _owners(pods: Sequence[Body]) -> list[Body]:
    return [
        {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        for pod in pods
    ]


def _condition(workload: Body, type_: str) -> Body:
    return next((c for c in workload.get("status", {}).get("conditions", ()) if c["type"] == type_), {})


def _is_true(workload: Body, type_: str) -> bool:
    return bool(_condition(workload, type_).get("status") == "True")


def _with(conditions: Sequence[Body], type_: str, status: str, reason: str, message: str) -> list[Body]:
    """The conditions with this one; the same ones if it is there already."""
    new = {"type": type_, "status": status, "reason": reason, "message": message}
    old = next((c for c in conditions if c["type"] == type_), {})
    if {key: old.get(key) for key in new} == new:
        return list(conditions)
    new["lastTransitionTime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return [*(c for c in conditions if c["type"] != type_), new]


async def _main() -> None:
    async with Client((await load_access()).configuration) as client:
        await StandIn(client).run()


if __name__ == "__main__":
    asyncio.run(_main())
