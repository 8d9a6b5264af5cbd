"""Gangs of the coscheduling plugin of scheduler-plugins: a PodGroup, and pods whose label names it.

The plugin binds no pod of a group before `minMember` of them have a place.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddpjob_operator.api import names
from ddpjob_operator.api.names import ProviderName, Reason
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.core.actions import CreateObject, PatchObject
from ddpjob_operator.core.gang import Gang
from ddpjob_operator.core.model import Body, Job, Kind, Observed
from ddpjob_operator.scheduling.affinity import attract
from ddpjob_operator.scheduling.interface import Candidate, Provider, Right, Wait
from ddpjob_operator.scheduling.pod_groups import (
    PodGroups,
    group_name,
    no_nodes,
    partly_placed,
    rights_on_groups,
    scheduler_of,
)

GROUP = "scheduling.x-k8s.io"
#: What the plugin says of pods that it refuses because of another pod of the group.
_OF_THE_OTHERS = re.compile(r"failed recently|rejection in (?:PostFilter|Unreserve)")

#: What it says of pods that it considers before its cache has the others of the group, which it has a moment later. It does
#: not consider these pods again by itself, so they keep the message (seen with scheduler-plugins of 2026-08-16).
_SEES_NOT_ALL = re.compile(r"cannot find enough sibling pods")


class Coscheduling(PodGroups):
    """PodGroups of scheduling.x-k8s.io/v1alpha1."""

    name = ProviderName.COSCHEDULING
    #: By the chart of scheduler-plugins.
    scheduler = "scheduler-plugins-scheduler"
    kind = Kind(api_version=f"{GROUP}/v1alpha1", kind="PodGroup", plural="podgroups")

    def group_spec(self, spec: DDPJobSpec, pod: Callable[[], Body]) -> Body:  # noqa: ARG002 the interface's
        """The gang, or minNodes of it.

        Without `minResources`: a group that the plugin refuses for lack of them is not considered again when pods end, only
        when pods are created or after five minutes (`EventsToRegister` of the plugin, and seen with the real one).
        """
        return {"minMember": spec.least_nodes}

    def before_pods(
        self, observed: Observed, spec: DDPJobSpec, pod: Callable[[], Body]
    ) -> Sequence[CreateObject | PatchObject]:
        """The PodGroup of the current attempt, and a change of it when its pods are refused only because of each other.

        By the time the last of them is refused, nodes may be free for all. The plugin considers them again only when their
        PodGroup changes, when any pod is created, or after five minutes (`EventsToRegister`; seen with the real one).
        """
        return super().before_pods(observed, spec, pod) or self._reminder(observed, spec)

    def _reminder(self, observed: Observed, spec: DDPJobSpec) -> Sequence[PatchObject]:
        group = self.current(observed)
        pods = [pod for pod in observed.pods if pod.attempt == observed.job.status.attempt]
        refused = [pod for pod in pods if pod.waiting and pod.node is None and not _lacks_a_node(pod.waiting.message)]
        if group is None or group.deleting or not len(refused) == len(pods) == spec.nodes:
            return ()
        # Once for each version of the pods, which changes when the scheduler says something else of them.
        versions = ",".join(sorted(pod.version for pod in refused))
        seen = hashlib.sha256(versions.encode()).hexdigest()[:16]
        if group.annotations.get(names.ANNOTATION_REFUSED) == seen:
            return ()
        patch = {"metadata": {"uid": group.uid, "annotations": {names.ANNOTATION_REFUSED: seen}}}
        return (PatchObject(kind=self.kind, name=group.name, resource_version="", patch=patch),)

    def decorate(self, pod: dict[str, Any], job: Job, spec: DDPJobSpec, rank: int) -> None:  # noqa: ARG002 the interface's
        """Name the group and the scheduler, unless the template names another one. Topology is an affinity of the pods."""
        pod["metadata"]["labels"][names.COSCHEDULING_GROUP_NAME] = group_name(job)
        pod["spec"]["schedulerName"] = scheduler_of(spec, self.scheduler)
        if (topology := spec.scheduling.topology) is not None:
            attract(pod, topology)

    def explain_gang(self, observed: Observed, spec: DDPJobSpec, gang: Gang) -> Wait | None:  # noqa: ARG002 the interface's
        """What the scheduler says of the pods that find no node. Of the others it says only that they were refused with these."""
        if gang.all_scheduled:
            return None
        scheduler = scheduler_of(spec, self.scheduler)
        if gang.num_placed:
            return partly_placed(gang, scheduler)
        messages = [pod.waiting.message for pod in gang.current.values() if pod.waiting]
        lacking = list(filter(_lacks_a_node, messages))
        if not lacking and any(map(_SEES_NOT_ALL.search, messages)):
            return Wait(Reason.STARTING, f"the scheduler {scheduler} does not see all {spec.nodes} pods yet")
        if messages:
            return no_nodes(spec, lacking)
        return Wait(
            Reason.STARTING,
            f"the scheduler {scheduler} has not considered the pods yet; if there is none of this name, name the one that"
            " has the plugin in spec.template.spec.schedulerName",
        )


def _lacks_a_node(message: str) -> bool:
    """Whether this is said of a pod that finds no node itself, and is not refused because of the others."""
    return not _OF_THE_OTHERS.search(message) and not _SEES_NOT_ALL.search(message)


_VERSIONS: Mapping[str, Provider] = {"v1alpha1": Coscheduling()}
_RIGHTS = (*rights_on_groups(GROUP), Right("patch", GROUP, "podgroups"))
CANDIDATE = Candidate(name=ProviderName.COSCHEDULING, group=GROUP, versions=_VERSIONS, rights=_RIGHTS)
