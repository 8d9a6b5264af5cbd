"""What all versions of Kubernetes' own gang scheduling have in common: a PodGroup, and pods that name it.

The default scheduler gives no pod of a PodGroup a node before `minCount` of them can have one. A pod that names a group that
does not exist waits. A group whose deletion is requested goes when the last of its pods has gone or ended.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ddpjob_operator.api.names import ProviderName, Reason
from ddpjob_operator.api.scheduling import TopologyMode
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.core.gang import Gang
from ddpjob_operator.core.model import Body, Job, Observed, OwnedObject
from ddpjob_operator.scheduling.affinity import attract
from ddpjob_operator.scheduling.interface import DEFAULT_SCHEDULER, Wait
from ddpjob_operator.scheduling.pod_groups import PodGroups, group_name, no_nodes

#: The scheduler's message on pods of a group of which another pod finds no node.
_OF_THE_OTHERS = "pod group is unschedulable"


class NativeGroups(PodGroups):
    """PodGroups of scheduling.k8s.io."""

    name = ProviderName.NATIVE
    scheduler = DEFAULT_SCHEDULER
    gates: ClassVar[str]
    """The feature gates of gang scheduling in the scheduler, as words of a message."""
    scheduled: ClassVar[str]
    """The condition of a group that says whether nodes were found for the whole gang."""

    def group_spec(self, spec: DDPJobSpec, pod: Callable[[], Body]) -> Body:  # noqa: ARG002 the interface's
        """The gang, or minNodes of it, together, in one domain of a required topology."""
        group: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": spec.least_nodes}}}
        topology = spec.scheduling.topology
        if topology is not None and topology.mode is TopologyMode.REQUIRED:
            group["schedulingConstraints"] = {"topology": [{"key": topology.key}]}
        return group

    def hold(self, observed: Observed, spec: DDPJobSpec) -> Wait | None:
        """The topology, if the API server has dropped it: without its feature gate it does so without an error."""
        topology = spec.scheduling.topology
        if topology is None or topology.mode is not TopologyMode.REQUIRED:
            return None
        group = self.current(observed)
        if group is None:
            return Wait(Reason.CREATING, "the PodGroup does not exist yet")
        if "schedulingConstraints" in group.spec:
            return None
        return Wait(
            Reason.UNSCHEDULABLE,
            f"the cluster ignores spec.scheduling.topology of PodGroup {group.name}: enable the feature gate"
            " TopologyAwareWorkloadScheduling in API server and scheduler, or set topology.mode to preferred",
        )

    def decorate(self, pod: dict[str, Any], job: Job, spec: DDPJobSpec, rank: int) -> None:  # noqa: ARG002 the interface's
        """Name the group. Its topology constraint is always required, so a preferred one is an affinity of the pods."""
        pod["spec"]["schedulingGroup"] = {"podGroupName": group_name(job)}
        if (topology := spec.scheduling.topology) is not None and topology.mode is TopologyMode.PREFERRED:
            attract(pod, topology)

    def explain_gang(self, observed: Observed, spec: DDPJobSpec, gang: Gang) -> Wait | None:
        """What the scheduler says of the pods that fail first. Of the others it says only that they wait for these."""
        waiting = [pod.waiting for pod in gang.current.values() if pod.node is None and pod.waiting]
        if not waiting:
            return None
        if gang.num_placed and not self._is_scheduled(self.current(observed)):
            return Wait(
                Reason.UNSCHEDULABLE,
                f"{gang.num_placed} of {gang.num_nodes} pods have a node although PodGroup"
                f" {group_name(observed.job)} is not scheduled: enable {self.gates} in the scheduler",
            )
        topology = spec.scheduling.topology
        required = topology is not None and topology.mode is TopologyMode.REQUIRED
        where = f" with the same {topology.key}" if topology is not None and required else ""
        return no_nodes(spec, (why.message for why in waiting if _OF_THE_OTHERS not in why.message), where)

    def _is_scheduled(self, group: OwnedObject | None) -> bool:
        """Whether the scheduler has found nodes for the whole gang; it binds the pods one after the other."""
        return self.condition(group, self.scheduled).get("status") == "True"

    @staticmethod
    def condition(group: OwnedObject | None, kind: str) -> Mapping[str, Any]:
        """The condition of this type; empty if the group has none."""
        conditions = group.status.get("conditions") or () if group is not None else ()
        return next((found for found in conditions if found["type"] == kind), {})
