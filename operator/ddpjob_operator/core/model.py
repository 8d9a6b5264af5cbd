"""The data that decisions are made of: what is seen of a job, and what is to be done.

Times are seconds since the epoch. Everything is frozen; nothing here decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import DDPJobStatus, Progress

Body = Mapping[str, Any]
"""A Kubernetes object as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A DDPJob as the API server holds it, parsed."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    created: float
    deleting: bool
    spec: DDPJobSpec | None
    """None where the stored spec does not parse; `spec_error` says why."""
    spec_error: str = ""
    status: DDPJobStatus = field(default_factory=DDPJobStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a container ended."""

    code: int
    signal: int | None
    reason: str
    """The kubelet's word, such as Error, OOMKilled, ContainerStatusUnknown."""
    message: str
    """The termination message: the program's last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Why something has not started: the API's reason and message."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """What decisions need of a pod."""

    name: str
    uid: str
    job_uid: str
    attempt: int
    rank: int
    spec_hash: str
    node: str | None
    """None until it is scheduled."""
    phase: str
    reason: str
    """Reason of the whole pod, such as Evicted or DeadlineExceeded; usually empty."""
    message: str
    ready: bool
    running: bool
    """Whether the main container runs."""
    exit: Exit | None
    """How the main container ended; None while it has not."""
    all_ended: bool
    """Whether no container can still be running: all have terminated, or none was ever started in a pod that is over."""
    waiting: Waiting | None
    """Why the main container waits or the pod has no node."""
    disruption: str
    """Message of the DisruptionTarget condition; empty without one."""
    deletion_deadline: float | None
    """deletionTimestamp, which includes the grace; None while nobody has deleted it."""
    active_deadline_seconds: int | None = None
    """Seconds the kubelet lets the pod live; None for no limit."""
    ended_seen: float | None = None
    """When this process first saw the main container's end."""

    @property
    def succeeded(self) -> bool:
        """Whether the program ended well."""
        return self.exit is not None and self.exit.code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What decisions need of the master Service."""

    name: str
    uid: str
    resource_version: str
    job_uid: str
    """uid of the owner; empty where it belongs to somebody else."""
    selector: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """All that is known of one job at one moment."""

    job: Job
    pods: tuple[Pod, ...] = ()
    """Every pod that carries the job's uid, of all attempts."""
    trainer_image: str = ""
    """The operator's trainer image, for jobs that name none."""
    service: Service | None = None
    nodes_gone: frozenset[str] = frozenset()
    """Names of the asked-for nodes that are NotFound, not Ready or out of service."""
    logs: Mapping[str, str] = field(default_factory=dict)
    """Tail of the log by uid of each pod whose log was asked for; empty text where it could not be read."""
    progress: Progress | None = None
    """Latest progress of rank 0 in the current attempt, where it was read."""
    rejections: Mapping[str, str] = field(default_factory=dict)
    """The API server's words by name of each object whose creation it refused last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePod:
    """Create a pod; one of this name that belongs to the same job is as good."""

    name: str
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateService:
    """Create the master Service; one of this name that belongs to the same job is as good."""

    name: str
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchService:
    """Merge-patch the master Service, if it still is the version that was seen."""

    name: str
    resource_version: str
    patch: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePod:
    """Delete this very pod (by uid), with a grace; None is the pod's own."""

    name: str
    uid: str
    grace_seconds: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerPodDeadline:
    """Make the kubelet end the pod's living containers while its object and logs stay."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteJob:
    """Delete the job itself; owner references take the rest."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLog:
    """A question: the tail of the main container's log. It is always answered, by empty text if need be."""

    pod: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadNode:
    """A question, asked again every few seconds: is this node gone?"""

    name: str


Action = CreatePod | CreateService | PatchService | DeletePod | LowerPodDeadline | DeleteJob
Question = ReadLog | ReadNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now for one job."""

    status: DDPJobStatus
    """The status that the job should show; equal to the observed one means no write."""
    write_ahead: bool = False
    """Write the status first, only if the job is still the version that was seen; there are no actions then."""
    actions: tuple[Action, ...] = ()
    """In order: everything before the first CreatePod is done before it; pods are created in parallel."""
    questions: tuple[Question, ...] = ()
    wake_at: float | None = None
    """Plan again at this time at the latest, even if nothing happens."""

    @classmethod
    def nothing(cls, job: Job) -> Self:
        """Leave everything as it is."""
        return cls(status=job.status)
