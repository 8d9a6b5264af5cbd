"""Gang scheduling of Kubernetes 1.37: the size of a PodGroup may change, and a gang is preempted as a whole."""

from collections.abc import Callable, Sequence
from typing import Any

from ddpjob_operator.api import names
from ddpjob_operator.api.names import Reason
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.core.actions import CreateObject, PatchObject
from ddpjob_operator.core.gang import Gang
from ddpjob_operator.core.model import Body, Kind, Observed
from ddpjob_operator.core.untrusted import printable, tail
from ddpjob_operator.scheduling.interface import Wait
from ddpjob_operator.scheduling.native_groups import NativeGroups
from ddpjob_operator.scheduling.pod_groups import no_nodes

#: All that the scheduler of 1.37 says of a gang for which it has considered no node (`PodGroupPostFilter` in
#: `plugins/dynamicresources`).
_BEFORE_ALL_NODES_SAID = 'error in "DynamicResources" PodGroupPostFilter plugins: not found'
_BEFORE_ALL_NODES = (
    "the scheduler has considered no node, because the cluster has none, or because a PersistentVolumeClaim of the pods"
    " does not exist or is not bound"
)


class NativeV1Beta1(NativeGroups):
    """PodGroups of scheduling.k8s.io/v1beta1."""

    kind = Kind(api_version="scheduling.k8s.io/v1beta1", kind="PodGroup", plural="podgroups")
    gates = "the feature gate GenericWorkload"
    scheduled = "PodGroupInitiallyScheduled"
    changes_least_nodes = True
    shares_claims = True

    def group_spec(self, spec: DDPJobSpec, pod: Callable[[], Body]) -> Body:
        """Also its priority and what is preempted together: all of a gang that needs all its pods.

        The scheduler refuses a group whose priority is not that of its pods (`validatePodGroup` in 1.37's
        `pkg/scheduler/schedule_one_podgroup.go`). A gang with minNodes may lose a pod and continue on the others' nodes.
        """
        group: dict[str, Any] = {**super().group_spec(spec, pod)}
        if spec.least_nodes == spec.nodes:
            group["disruptionMode"] = {"all": {}}
        if priority := pod()["spec"].get("priorityClassName"):
            group["priorityClassName"] = priority
        if shared := spec.scheduling.shared_claims:
            # Equal to the pods' own entries: the scheduler shares a claim only if all their fields are.
            group["resourceClaims"] = [
                claim for claim in pod()["spec"].get("resourceClaims") or () if claim.get("name") in shared
            ]
        return group

    def hold(self, observed: Observed, spec: DDPJobSpec) -> Wait | None:
        """Also the shared claims, if the pods have none of the name, or the API server has dropped the group's."""
        shared = spec.scheduling.shared_claims
        if (topology := super().hold(observed, spec)) is not None or not shared:
            return topology
        group = self.current(observed)
        if group is None:
            return Wait(Reason.CREATING, "the PodGroup does not exist yet")
        pod = spec.template.spec if spec.template else None
        claims = [claim.get("name") for claim in (pod.resource_claims if pod else None) or ()]
        if missing := [name for name in shared if name not in claims]:
            return Wait(
                Reason.UNSCHEDULABLE,
                f"spec.scheduling.sharedClaims names {', '.join(missing)}, but spec.template.spec.resourceClaims"
                " has none of that name",
            )
        if group.spec.get("resourceClaims"):
            return None
        return Wait(
            Reason.UNSCHEDULABLE,
            f"the cluster ignores spec.scheduling.sharedClaims of PodGroup {group.name}: enable the feature gate"
            " DRAWorkloadResourceClaims in API server, scheduler, controller manager and kubelets, or remove sharedClaims",
        )

    def before_pods(
        self, observed: Observed, spec: DDPJobSpec, pod: Callable[[], Body]
    ) -> Sequence[CreateObject | PatchObject]:
        """The PodGroup of the current attempt, and a change of its size where minNodes has changed since."""
        return super().before_pods(observed, spec, pod) or self._resize(observed, spec)

    def _resize(self, observed: Observed, spec: DDPJobSpec) -> Sequence[PatchObject]:
        group, least = self.current(observed), spec.least_nodes
        if group is None or group.deleting or _min_count(group.spec) == least:
            return ()
        mark = str(least) if least < spec.nodes else None
        patch = {
            "metadata": {"uid": group.uid, "annotations": {names.ANNOTATION_LEAST_NODES: mark}},
            "spec": {"schedulingPolicy": {"gang": {"minCount": least}}},
        }
        return (PatchObject(kind=self.kind, name=group.name, resource_version="", patch=patch),)

    def explain_gang(self, observed: Observed, spec: DDPJobSpec, gang: Gang) -> Wait | None:
        """Also why the scheduler cannot consider the group at all, which it says of the group."""
        condition = self.condition(self.current(observed), self.scheduled)
        if condition.get("reason") != "SchedulerError" or gang.num_placed:
            return super().explain_gang(observed, spec, gang)
        said = printable(tail(str(condition.get("message", ""))))
        return no_nodes(spec, [_BEFORE_ALL_NODES if said == _BEFORE_ALL_NODES_SAID else said])


def _min_count(group: Body) -> object:
    return ((group.get("schedulingPolicy") or {}).get("gang") or {}).get("minCount")
