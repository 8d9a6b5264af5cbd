"""Kueue: the pods of a job are a pod group, which a queue admits as a whole.

Kueue's webhook gives each pod of a queue a scheduling gate and a finalizer. Once all pods of a group exist, Kueue makes a
Workload of the group's name, and removes the gates when the queue has quota for all of them. An evicted group loses its pods,
and their replacements wait in the queue again. A finalizer goes when its pod has been replaced or the group has finished.

A group outlives its attempts. The pods of a restart, and a pod that is replaced within an attempt, take the places of those that
failed, so the job keeps its quota ("Retrying Failed Pods" in Kueue's `keps/976-plain-pods`). Kueue counts a pod that has
succeeded, or that runs on a lost node, as a member for good; after these the next attempt has a group of its own. The end of a
group is said by an annotation on one of its pods, after which Kueue returns its quota and releases its pods.

Which group a pod joins follows from the pods that Kueue still holds, so nothing about it is stored.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ddpjob_operator.api import names
from ddpjob_operator.api.names import ProviderName, Reason
from ddpjob_operator.api.scheduling import TopologyMode
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.core.actions import CreateObject, PatchObject
from ddpjob_operator.core.gang import Gang
from ddpjob_operator.core.model import POD, Body, Job, Observed, Pod, Watched
from ddpjob_operator.scheduling.interface import DEFAULT_SCHEDULER, Candidate, Provider, Right, Wait
from ddpjob_operator.scheduling.kueue_wait import GROUP, explain, local_queues, workloads

#: Marks a pod of a group of which no pod will be replaced. Kueue refuses to take it back.
_CLOSED = {"metadata": {"annotations": {names.KUEUE_RETRIABLE_IN_GROUP: "false"}}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """A group whose pods have all failed, so that new ones of the same spec may take their places."""

    group: str
    spec_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kueue:
    """Pod groups of Kueue."""

    version: str
    """The served version of Workloads."""
    joined: str | None = None
    """The group of the current attempt, where some of its pods exist."""
    continued: Continued | None = None
    """The group that a new attempt continues, if its spec is the same."""

    name = ProviderName.KUEUE
    scheduler = DEFAULT_SCHEDULER
    #: A quota is no promise of nodes.
    places_whole_gangs = False
    #: A pod group is admitted with its total count (`kueue.x-k8s.io/pod-group-total-count`) or not at all.
    places_fewer = False
    changes_least_nodes = False
    shares_claims = False

    @property
    def watched(self) -> Sequence[Watched]:
        """Workloads and LocalQueues, also those of others: they are what a job waits behind."""
        return (workloads(self.version), local_queues(self.version))

    def for_attempt(self, observed: Observed) -> Self:
        """The provider that knows which group the pods of the current attempt join."""
        attempt = observed.job.status.attempt
        members = _members(observed)
        joined = next((group for group, pods in members.items() if any(pod.attempt == attempt for pod in pods)), None)
        return type(self)(version=self.version, joined=joined, continued=_continued(members, attempt))

    def before_pods(
        self,
        observed: Observed,  # noqa: ARG002 the interface's
        spec: DDPJobSpec,  # noqa: ARG002 the interface's
        pod: Callable[[], Body],  # noqa: ARG002 the interface's
    ) -> Sequence[CreateObject | PatchObject]:
        """Nothing: Kueue makes the Workload."""
        return ()

    def hold(self, observed: Observed, spec: DDPJobSpec) -> Wait | None:  # noqa: ARG002 the interface's
        """A replaced pod on a lost node: while it exists, Kueue deletes its successor as one pod too many."""
        lost = next((pod for pod in observed.pods if _is_replaced(observed, pod) and _is_lost(observed, pod)), None)
        return Wait(Reason.STOPPING, f"waiting for pod {lost.name} on a lost node to be removed") if lost else None

    def decorate(self, pod: dict[str, Any], job: Job, spec: DDPJobSpec, rank: int) -> None:
        """Make the pod a member of the group, in the order of ranks."""
        labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
        spec_hash = annotations[names.ANNOTATION_SPEC_HASH]
        # With the uid, since a Workload that an earlier job of this name has left may be there for a moment.
        own_group = f"{job.name}-{job.status.attempt}-{job.uid.partition('-')[0][:4]}"
        is_continued = self.continued is not None and self.continued.spec_hash == spec_hash
        labels[names.KUEUE_GROUP_NAME] = (
            self.joined or (self.continued.group if self.continued and is_continued else None) or own_group
        )
        if spec.scheduling.queue_name:
            labels[names.KUEUE_QUEUE_NAME] = spec.scheduling.queue_name
        labels[names.KUEUE_GROUP_POD_INDEX] = str(rank)
        annotations[names.KUEUE_GROUP_TOTAL_COUNT] = str(spec.nodes)
        # Kueue's own hash covers node affinity and spread constraints, which differ from attempt to attempt.
        annotations[names.KUEUE_ROLE_HASH] = f"ranks-{spec_hash[:8]}"
        if topology := spec.scheduling.topology:
            is_required = topology.mode is TopologyMode.REQUIRED
            annotations[names.KUEUE_REQUIRED_TOPOLOGY if is_required else names.KUEUE_PREFERRED_TOPOLOGY] = topology.key

    def end(self, observed: Observed) -> Sequence[PatchObject]:
        """Close the groups that no pod will join again, and release their pods on lost nodes: this returns their quota."""
        runs = _runs(observed.job)
        joined = self.for_attempt(observed).joined
        if runs and joined is None:
            return ()  # the next attempt may continue the group
        closed = [
            _close(next(pod for pod in pods if _is_held(pod)))
            for group, pods in _members(observed).items()
            if (group != joined or not runs) and any(map(_is_held, pods)) and not any(map(_closes, pods))
        ]
        return [*closed, *(_release(pod) for pod in observed.pods if _is_needless(observed, pod))]

    def explain(self, observed: Observed, spec: DDPJobSpec, gang: Gang) -> Wait | None:
        """What the queue says of a gang that it has not admitted."""
        gated = next((pod for pod in gang.current.values() if pod.is_gated and pod.membership is not None), None)
        if gated is None or gated.membership is None:
            return None
        return explain(observed, self.version, spec.scheduling.queue_name, gated.membership.group)


def _members(observed: Observed) -> Mapping[str, Sequence[Pod]]:
    """The pods of each group, groups in the order of their newest attempt."""
    groups: dict[str, list[Pod]] = {}
    for pod in sorted(observed.pods, key=lambda pod: (-pod.attempt, pod.rank)):
        if pod.membership is not None:
            groups.setdefault(pod.membership.group, []).append(pod)
    return groups


def _continued(members: Mapping[str, Sequence[Pod]], attempt: int) -> Continued | None:
    for group, pods in members.items():
        if any(pod.attempt < attempt and _is_held(pod) for pod in pods):
            replaceable = all(_is_replaceable(pod) and not _closes(pod) for pod in pods)
            hashes = {pod.spec_hash for pod in pods}
            return Continued(group=group, spec_hash=hashes.pop()) if replaceable and len(hashes) == 1 else None
    return None


def _is_replaceable(pod: Pod) -> bool:
    """Whether Kueue lets another pod take the place of this one (`isPodRunnableOrSucceeded` in its pod_controller.go)."""
    return pod.phase == "Failed" or (pod.deletion is not None and pod.node is None)


def _is_held(pod: Pod) -> bool:
    return pod.membership is not None and pod.membership.is_held


def _closes(pod: Pod) -> bool:
    return pod.membership is not None and pod.membership.closes


def _runs(job: Job) -> bool:
    return job.spec is not None and not (job.spec.suspend or job.status.finished or job.deleting)


def _is_lost(observed: Observed, pod: Pod) -> bool:
    """Whether a deleted member will never be seen to end, as its node is lost."""
    is_gone = pod.deletion is not None and pod.node in observed.nodes_gone and not pod.all_ended
    return pod.membership is not None and is_gone


def _is_replaced(observed: Observed, pod: Pod) -> bool:
    """Whether another pod takes its place in the current attempt."""
    status = observed.job.status
    return pod.attempt == status.attempt and pod.replacement < status.replacement(pod.rank)


def _is_needless(observed: Observed, pod: Pod) -> bool:
    """Whether only Kueue's finalizer keeps a pod on a lost node, for which no attempt waits.

    It has been replaced, the next attempt has pods, or there is none: the operator has deleted it without a grace.
    """
    if not (_is_held(pod) and _is_lost(observed, pod)):  # first, since few pods are
        return False
    attempt = observed.job.status.attempt
    is_old = pod.attempt < attempt and any(other.attempt == attempt for other in observed.pods)
    return is_old or _is_replaced(observed, pod) or not _runs(observed.job)


def _release(pod: Pod) -> PatchObject:
    """Remove the finalizer: Kueue counts a pod that runs on a lost node, and its group keeps its quota otherwise."""
    others = list(pod.membership.other_finalizers) if pod.membership else []
    patch = {"metadata": {"uid": pod.uid, "finalizers": others or None}}
    return PatchObject(kind=POD, name=pod.name, resource_version="", patch=patch)


def _close(pod: Pod) -> PatchObject:
    patch = {"metadata": {"uid": pod.uid, **_CLOSED["metadata"]}}
    return PatchObject(kind=POD, name=pod.name, resource_version="", patch=patch)


#: Newest first.
_VERSIONS: Mapping[str, Provider] = {version: Kueue(version=version) for version in ("v1beta2", "v1beta1")}

CANDIDATE = Candidate(
    name=ProviderName.KUEUE,
    group=GROUP,
    versions=_VERSIONS,
    rights=[Right(verb, GROUP, what) for what in ("workloads", "localqueues") for verb in ("get", "list", "watch")],
)
