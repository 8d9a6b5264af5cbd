"""What providers have in common that place the pods of a PodGroup together: one PodGroup for each attempt.

Each attempt has its own group, so that no pod of an attempt that still stops counts for the next one. A pod that is replaced within an
attempt joins the group of the others, whose nodes count: all three schedulers admit it as soon as there is a node for it alone
(`Permit` in Kubernetes 1.36's `plugins/gangscheduling/gangscheduling.go`, `ReadyTaskNum` in Volcano's `pkg/scheduler/api/job_info.go`,
`Permit` in scheduler-plugins' `pkg/coscheduling/core/core.go`).
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Self

from ddpjob_operator.api import names
from ddpjob_operator.api.names import ProviderName, Reason
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.core.actions import Action, CreateObject, DeleteObject, PatchObject
from ddpjob_operator.core.gang import Gang
from ddpjob_operator.core.model import Body, Job, Kind, Observed, OwnedObject, Watched
from ddpjob_operator.core.ownership import metadata_of
from ddpjob_operator.core.scheduler_message import scheduler_message
from ddpjob_operator.scheduling.interface import Right, Wait


def group_name(job: Job) -> str:
    """Name of the PodGroup of the job's current attempt; a label holds it.

    With a part of the uid: pods of a deleted job count for the PodGroup that they name until they have stopped, and the next job of
    its name must not have that one. The letter keeps the name from being that of a pod.
    """
    return f"{job.name}-{job.status.attempt}-u{job.uid[-3:]}"


def rights_on_groups(group: str) -> Sequence[Right]:
    """The rights on PodGroups of this API group that a provider needs."""
    return [Right(verb, group, "podgroups") for verb in ("get", "list", "watch", "create", "delete")]


def no_nodes(spec: DDPJobSpec, messages: Iterable[str], where: str = "") -> Wait:
    """The wait of a gang for which the scheduler finds no nodes: the most common message of its pods."""
    least = spec.least_nodes
    pods = f"{least} of the {spec.nodes} pods" if least < spec.nodes else f"all {spec.nodes} pods"
    nowhere = f"no nodes{where} for {pods} together"
    counted = Counter(messages)
    if not counted:
        return Wait(Reason.UNSCHEDULABLE, nowhere)
    common, _ = min(counted.items(), key=lambda item: (-item[1], item[0]))
    return Wait(Reason.UNSCHEDULABLE, f"{nowhere}: {scheduler_message(spec, common)}")


def scheduler_of(spec: DDPJobSpec, default: str) -> str:
    """The scheduler of the pods: a cluster may run the one that knows of gangs under another name, which the template gives."""
    pod = spec.template.spec if spec.template else None
    return str((pod.model_extra or {}).get("schedulerName") or default) if pod else default


def partly_placed(gang: Gang, scheduler: str) -> Wait:
    """The wait of a gang of which a part has nodes: a moment with a scheduler that knows of gangs, for ever with another."""
    return Wait(
        Reason.UNSCHEDULABLE,
        f"{gang.num_placed} of {gang.num_nodes} pods have a node; the scheduler {scheduler} has not bound the others yet",
    )


class PodGroups(ABC):
    """Creates the PodGroup of an attempt before its pods, and deletes it when no pod needs it."""

    name: ClassVar[ProviderName]
    kind: ClassVar[Kind]
    scheduler: ClassVar[str]
    places_whole_gangs = True
    places_fewer = True
    changes_least_nodes = False
    shares_claims = False

    @property
    def watched(self) -> Sequence[Watched]:
        """The PodGroups of jobs."""
        return (Watched(kind=self.kind),)

    def for_attempt(self, observed: Observed) -> Self:  # noqa: ARG002 the interface's
        """Itself."""
        return self

    def before_pods(
        self, observed: Observed, spec: DDPJobSpec, pod: Callable[[], Body]
    ) -> Sequence[CreateObject | PatchObject]:
        """The PodGroup of the current attempt."""
        # One whose deletion was requested still counts for the native scheduler, and stays while its pods do (seen on 1.36).
        if self.current(observed) is not None:
            return ()
        job, name = observed.job, group_name(observed.job)
        metadata = metadata_of(job, name)
        metadata["labels"][names.LABEL_ATTEMPT] = str(job.status.attempt)
        spec_hash = pod()["metadata"]["annotations"][names.ANNOTATION_SPEC_HASH]
        metadata["annotations"] = {names.ANNOTATION_SPEC_HASH: spec_hash}  # the group is as immutable as the pods
        if spec.least_nodes < spec.nodes:
            metadata["annotations"][names.ANNOTATION_LEAST_NODES] = str(spec.least_nodes)
        body = {"apiVersion": self.kind.api_version, "kind": self.kind.kind, "metadata": metadata}
        return (CreateObject(kind=self.kind, name=name, body={**body, "spec": self.group_spec(spec, pod)}),)

    def hold(self, observed: Observed, spec: DDPJobSpec) -> Wait | None:  # noqa: ARG002 the interface's
        """Nothing."""
        return None

    def end(self, observed: Observed) -> Sequence[Action]:
        """Delete the groups of earlier attempts, and that of the current one when the job is suspended or has finished."""
        job = observed.job
        runs = job.spec is not None and not job.spec.suspend and not job.status.finished
        return [
            DeleteObject(kind=self.kind, name=group.name, uid=group.uid)
            for group in self._groups(observed)
            if not group.deleting and (not runs or group.attempt < job.status.attempt)
        ]

    def current(self, observed: Observed) -> OwnedObject | None:
        """The PodGroup of the current attempt."""
        name = group_name(observed.job)
        return next((group for group in self._groups(observed) if group.name == name), None)

    def _groups(self, observed: Observed) -> list[OwnedObject]:
        return [found for found in observed.objects if found.kind == self.kind and found.job_uid == observed.job.uid]

    @abstractmethod
    def group_spec(self, spec: DDPJobSpec, pod: Callable[[], Body]) -> Body:
        """The spec of the PodGroup; `pod` renders the pod of one rank."""

    @abstractmethod
    def decorate(self, pod: dict[str, Any], job: Job, spec: DDPJobSpec, rank: int) -> None:
        """Name the group in the rendered pod."""

    def explain(self, observed: Observed, spec: DDPJobSpec, gang: Gang) -> Wait | None:
        """Why the gang waits. Of pods that get their nodes one by one, replaced ones or those beyond minNodes, the pods say it."""
        has_least = spec.least_nodes <= gang.num_placed < gang.num_nodes
        return None if observed.job.status.replaced_pods or has_least else self.explain_gang(observed, spec, gang)

    @abstractmethod
    def explain_gang(self, observed: Observed, spec: DDPJobSpec, gang: Gang) -> Wait | None:
        """Why a gang waits that gets its nodes together."""
