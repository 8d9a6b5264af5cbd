"""What the operator needs of a scheduling provider: three actions, and the explanations of waits.

A provider is pure, like the core: it reads records of objects and returns actions. All methods are level-triggered: for the
state that their actions lead to they return nothing. A provider has no memory, so one instance serves all jobs.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ddpjob_operator.api.names import ProviderName, Reason
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.core.actions import Action, CreateObject, PatchObject
from ddpjob_operator.core.gang import Gang
from ddpjob_operator.core.model import Body, Job, Observed, Watched

#: The scheduler of a pod that names none.
DEFAULT_SCHEDULER = "default-scheduler"


class Wait(NamedTuple):
    """Why a gang whose pods all exist does not run yet."""

    reason: Reason
    message: str


class Provider(Protocol):
    """Schedules the pods of a gang together."""

    @property
    def name(self) -> ProviderName:
        """Its name, as in the setting."""

    @property
    def scheduler(self) -> str:
        """Name of the scheduler of its pods, unless the template of the job names another one."""

    @property
    def places_whole_gangs(self) -> bool:
        """Whether no pod gets a node before all pods of its gang can have one, so that no part of a gang has to be released."""

    @property
    def places_fewer(self) -> bool:
        """Whether it gives nodes to a gang of spec.minNodes, and to the other pods one by one."""

    @property
    def changes_least_nodes(self) -> bool:
        """Whether it changes how many pods of a waiting gang get nodes together, so that the gang keeps its pods."""

    @property
    def shares_claims(self) -> bool:
        """Whether the pods of a gang can share resource claims that are made for the gang."""

    @property
    def watched(self) -> Sequence[Watched]:
        """The objects that it reads. The operator watches them while it uses this provider."""

    def for_attempt(self, observed: Observed) -> "Provider":
        """The provider that decorates the pods of the current attempt: itself, unless that depends on earlier pods."""

    def before_pods(
        self, observed: Observed, spec: DDPJobSpec, pod: Callable[[], Body]
    ) -> Sequence[CreateObject | PatchObject]:
        """What must exist before the pods of the current attempt are created; nothing once it does.

        It is called until all pods have a node. `pod` renders the pod of rank 0.
        """

    def hold(self, observed: Observed, spec: DDPJobSpec) -> Wait | None:
        """Why no pod may be created yet although the objects before them are; None if pods may be created."""

    def decorate(self, pod: dict[str, Any], job: Job, spec: DDPJobSpec, rank: int) -> None:
        """Add to the rendered pod of a node rank what the scheduler reads."""

    def end(self, observed: Observed) -> Sequence[Action]:
        """Release what no pod of the job needs any more.

        It is called in each reconcile: of a running job (what earlier attempts left), of a suspended one, of one that waits
        between two attempts, of one that has finished (`observed.job.status.finished`), and of one that is being deleted
        (`observed.job.deleting`).
        """

    def explain(self, observed: Observed, spec: DDPJobSpec, gang: Gang) -> Wait | None:
        """Why the gang waits, where the provider knows it better than the pods; None otherwise.

        It is called while all pods exist, none is being deleted and not all run.
        """


class Right(NamedTuple):
    """A right of the operator that a provider needs."""

    verb: str
    group: str
    resource: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A provider that the operator may use if the cluster serves its API."""

    name: ProviderName
    group: str
    """The API group whose served versions decide."""
    versions: Mapping[str, Provider]
    """The provider for each version of the group that it can use, newest first."""
    rights: Sequence[Right]
    """What the operator must be allowed to do."""
    served_by: str = ""
    """What makes a cluster serve the group, as one sentence, where that is more than its installation."""

    @property
    def newest(self) -> Provider:
        """The provider for the newest version."""
        return next(iter(self.versions.values()))

    def version_of(self, served: Collection[str]) -> str | None:
        """The newest version that is served; None if it can use none of them."""
        return next((version for version in self.versions if version in served), None)

    def of_versions(self, served: Collection[str]) -> Provider | None:
        """The provider for the newest version that is served; None if it can use none of them."""
        version = self.version_of(served)
        return None if version is None else self.versions[version]
