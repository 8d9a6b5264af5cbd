"""The data that decisions are made from: what is observed of a job.

Times are seconds since the epoch. Everything is frozen; nothing here decides.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from ddpjob_operator.api import names
from ddpjob_operator.api.resource import Body as Body
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import DDPJobStatus, Progress

#: How far two of the clocks of the API server, of a node and of this process are assumed to differ at most.
CLOCK_MARGIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A DDPJob as the API server holds it, parsed."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    deleting: bool
    spec: DDPJobSpec | None
    """None where the stored spec does not parse; `spec_error` says why."""
    spec_error: str = ""
    managed_by: str | None = None
    """spec.managedBy, also where the rest of the spec does not parse."""
    status: DDPJobStatus = field(default_factory=DDPJobStatus)

    @property
    def spec_of_attempt(self) -> DDPJobSpec | None:
        """The spec with the number of nodes of the current attempt, which somebody may have changed since it began."""
        nodes = self.status.replicas
        if self.spec is None or nodes in (None, self.spec.nodes):
            return self.spec
        return self.spec.model_copy(update={"nodes": nodes})

    @property
    def is_managed_elsewhere(self) -> bool:
        """Whether another controller runs it and writes its status."""
        return self.managed_by not in (None, names.CONTROLLER)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExit:
    """How torchrun reports that its first failing worker ended."""

    code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """What decisions need of the end of a log, or of a termination message, which often is one: a few hundred bytes."""

    exception: str = ""
    """The Python exception that a worker ended with."""
    then: str = ""
    """An exception that followed while that one was being handled."""
    rank: int | None = None
    """The global rank of the process that it is about, where the text names it."""
    worker: WorkerExit | None = None
    """The failing worker of torchrun's table that it is about."""
    left_early: int | None = None
    """A rank of the same pod that had ended with exit code 0 before, as our launcher says."""
    symptoms: str = ""
    """What in the whole text says that another rank went away or that memory ran out, for programs without a traceback."""
    last_line: str = ""
    progress: Progress | None = None
    says_rank_0: bool = False
    """Whether a process says of itself that it is rank 0, in the words of torch or Lightning."""


#: What an unreadable log shows.
NO_LOG = LogEnd()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a container ended."""

    code: int
    signal: int | None
    reason: str
    """The kubelet's reason, such as Error, OOMKilled, ContainerStatusUnknown."""
    message: str
    """The termination message."""
    init_container: str = ""
    """The name of the init container that ended in this way; empty for the main container, which never starts otherwise."""
    parsed_message: LogEnd = NO_LOG
    """What the termination message shows. It is parsed once, when this record is made: a gang has thousands."""
    finished: float | None = None
    """When it ended, by the node's clock."""
    seen: float | None = None
    """When this process first saw it, by this process's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """The fact that the deletion of a pod was requested: its containers stop within the grace, then the object goes.

    Three clocks are involved, which differ by seconds: this process's (like every `now`), the API server's and the node's.
    So whether a program had ended before the deletion is decided by the order in which this process saw both. A process that
    saw both at once, because it started later, compares the node's clock with the API server's, with a margin.
    """

    deadline: float
    """When the grace has passed, by this process's clock."""
    after_exit: bool = False
    """Whether this process saw the main container's end in a version of the pod from before its deletion."""
    seen_while_current: float | None = None
    """When this process first saw the deletion, by its own clock; None if the job was in a later attempt by then, or if it is
    not known."""
    timestamp: float | None = None
    """metadata.deletionTimestamp: the end of the grace, by the API server's clock."""
    requested: float | None = None
    """When the deletion was first requested, by the API server's clock; None if that is not known."""

    def follows(self, exit_: Exit) -> bool:
        """Whether the program had ended in this way before the deletion was requested, so that it was not stopped by it."""
        if self.after_exit or self.requested is None or exit_.finished is None:
            return self.after_exit
        return exit_.finished + CLOCK_MARGIN_SECONDS < self.requested


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Why something has not started: the API's reason and message."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What the main container may do, as the pod's securityContext says."""

    uid: int | None
    """None: the image's own user."""
    read_only_root: bool


#: The API server's reason for a pod with scheduling gates.
GATED = "SchedulingGated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The place of a pod in a pod group of Kueue."""

    group: str
    is_held: bool
    """Whether the finalizer of Kueue keeps the pod: the group still counts it."""
    closes: bool
    """Whether the pod says that none of the group will be replaced."""
    other_finalizers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """What decisions need of a pod."""

    name: str
    uid: str
    job_uid: str
    attempt: int
    rank: int
    replacement: int = 0
    """How often the pod of this rank had been replaced in its attempt when this one was created."""
    is_supervised: bool = False
    """Whether its launcher can start its ranks again in place, and waits for another pod that is replaced."""
    is_placeholder: bool = False
    """Whether it runs no rank: it holds a place for a missing node, or an operator of an older release created it as a spare pod."""
    spec_hash: str
    node: str | None
    """None until it is scheduled."""
    phase: str
    reason: str
    """Reason of the whole pod, such as Evicted or DeadlineExceeded; usually empty."""
    message: str
    running: bool
    """Whether the main container runs."""
    exit: Exit | None
    """How the main container ended; None while it has not."""
    all_ended: bool
    """Whether no container can still be running: all have terminated, or none was ever started in a pod that is over."""
    waiting: Waiting | None
    """Why the main container waits or the pod has no node."""
    disruption: str
    """Reason and message of the DisruptionTarget condition; empty without one."""
    deletion: Deletion | None = None
    """None while nobody has requested its deletion."""
    placed: float | None = None
    """When the scheduler found a node for it."""
    active_deadline_seconds: int | None = None
    """Seconds the kubelet lets the pod live; None for no limit."""
    image: str = ""
    """Of the main container."""
    grace_seconds: int = 30
    """Its own grace after SIGTERM."""
    security: Security | None = None
    """None where the pod does not decide it: a process of this machine."""
    scheduling: str = ""
    """The scheduling provider that it was created for; empty where the pod does not say so."""
    membership: Membership | None = None
    """Its pod group in Kueue; None if it is in none."""
    version: str = ""
    """The resourceVersion of a pod that has no node yet; empty for other pods."""

    @property
    def is_gated(self) -> bool:
        """Whether no scheduler may consider it yet, for example because a queue has not admitted it."""
        return self.waiting is not None and self.waiting.reason == GATED

    @property
    def succeeded(self) -> bool:
        """Whether the program succeeded by itself: one that gets SIGTERM may exit with 0 although its work is not done."""
        was_stopped = (self.deletion is not None or self.disruption) and not self.ended_before_deletion
        return self.exit is not None and self.exit.code == 0 and not was_stopped and not self.reason

    @property
    def ended_before_deletion(self) -> bool:
        """Whether the program had ended before anybody requested the pod's deletion."""
        return self.deletion is not None and self.exit is not None and self.deletion.follows(self.exit)

    def is_past_grace(self, now: float, by_seconds: float) -> bool:
        """Whether the grace of its deletion passed this long ago."""
        return self.deletion is not None and self.deletion.deadline + by_seconds <= now


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What decisions need of the master Service."""

    name: str
    uid: str
    resource_version: str
    job_uid: str
    """uid of the owner; empty where it belongs to somebody else."""
    selector: Mapping[str, str]
    publishes_not_ready: bool = True
    """Whether ranks find rank 0 before its pod is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of namespaced objects in the Kubernetes API."""

    api_version: str
    """Such as v1, or scheduling.k8s.io/v1alpha2."""
    kind: str
    plural: str


#: The kind of the master Service.
SERVICE = Kind(api_version="v1", kind="Service", plural="services")
POD = Kind(api_version="v1", kind="Pod", plural="pods")


def _label_of_the_job(body: Body) -> str:
    return str((body["metadata"].get("labels") or {}).get(names.LABEL_JOB, ""))


def _as_it_is(body: Body) -> Body:
    return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Objects that the operator watches, in addition to jobs, pods and Services."""

    kind: Kind
    labels: str = names.LABEL_JOB_UID
    """The label selector of the watch; empty for all objects of the kind."""
    trim: Callable[[Body], Body] = _as_it_is
    """The part of an object that is kept in memory: metadata, spec and status."""
    job_name: Callable[[Body], str] = _label_of_the_job
    """The name of the job that an object is about; empty for one that is about none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedObject:
    """What decisions need of any other object of the job, such as a PodGroup."""

    kind: Kind
    namespace: str
    name: str
    uid: str
    resource_version: str
    job_name: str
    job_uid: str
    """uid of the DDPJob that controls it; empty where another controller has made it."""
    deleting: bool
    attempt: int
    """The attempt that its label names; 0 without the label."""
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Body
    status: Body


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why the API server did not carry out a request."""

    message: str
    request: str = "create pod"
    """What was requested, to be read before the name of the object."""
    by_failure: bool = False
    """The server itself failed (500, for example a broken webhook), which says nothing about this object."""
    is_terminating: bool = False
    """An object of the same name is being deleted, so the creation only has to wait for that."""
    since: float = 0.0
    """Since when the server has refused this on purpose, in seconds since the epoch; 0 if that is not known."""

    @property
    def is_by_quota(self) -> bool:
        """Whether a quota is used up, which may be free again later."""
        return "exceeded quota" in self.message

    @property
    def is_on_purpose(self) -> bool:
        """Whether the server will refuse it again, by a policy or for a mistake in it."""
        return not (self.by_failure or self.is_terminating or self.is_by_quota)


T = TypeVar("T")
#: All watched objects of a kind, whichever job they are about.
AllOf = Callable[[Kind], Iterable[OwnedObject]]


def _none_of(kind: Kind) -> Iterable[OwnedObject]:  # noqa: ARG001 the signature of `Observed.all_of`
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleUp:
    """The fact that an autoscaler has announced nodes for a job, in seconds since the epoch by the API server's clock."""

    since: float
    """The first announcement."""
    latest: float
    """The last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """All that is known of one job at one moment."""

    job: Job
    pods: tuple[Pod, ...] = ()
    """Every pod that carries the job's uid, of all attempts."""
    vanished: tuple[Pod, ...] = ()
    """What this process saw last of pods of the latest attempt that are gone."""
    trainer_image: str = ""
    """The operator's trainer image, for jobs that name none."""
    service: Service | None = None
    objects: tuple[OwnedObject, ...] = ()
    """The other objects of the job of the kinds that the operator watches; none of an earlier job of the same name."""
    makes_network_policies: bool = False
    """Whether the operator creates NetworkPolicies for jobs: it is asked to, may do so and watches them."""
    all_of: AllOf = _none_of
    """All watched objects of a kind, whichever job they are about."""
    indexes: Callable[[Callable[[AllOf], Any]], Any] | None = None
    """Gives what a function makes of all watched objects, computed once for many jobs; None: for each job again."""
    begun_attempt: int | None = None
    """The attempt that this process began last, so that it made the record of the failure before it; None if it began none."""
    one_machine: bool = False
    """Whether all pods always run on the same machine, so that the job has no other node to go to."""
    nodes_gone: frozenset[str] = frozenset()
    """Names of the looked-up nodes that do not exist, are unreachable (Ready is Unknown) or out of service."""
    nodes_cordoned: frozenset[str] = frozenset()
    """Names of the looked-up nodes that accept no new pods."""
    logs: Mapping[str, LogEnd] = field(default_factory=dict)
    """By uid of each pod whose log was looked up; NO_LOG where it could not be read."""
    warnings: Mapping[str, str] = field(default_factory=dict)
    """What a kubelet reports, by uid of each pod that was looked up."""
    scale_up: ScaleUp | None = None
    """Nodes for the job that an autoscaler has announced, for this attempt or an earlier one, where that was looked up."""
    progress: Progress | None = None
    """Latest progress of rank 0 in the current attempt, where it was read."""
    silent_seconds: float = 0.0
    """How long rank 0's log has been readable and has shown neither a new step nor a new phase."""
    rejections: Mapping[str, Rejection] = field(default_factory=dict)
    """By name of each object that the API server refused to create or to update last."""
    refused_removals: Mapping[str, Rejection] = field(default_factory=dict)
    """By name of each object that the API server refused to delete or to stop last."""
    dropped_fields: frozenset[str] = frozenset()
    """Paths of fields that the API server does not store in a status, since an older CRD is installed: restarts.podReplacements."""

    def index(self, build: Callable[[AllOf], T]) -> T:
        """What `build` makes of all watched objects, perhaps as they were a second ago."""
        return build(self.all_of) if self.indexes is None else cast("T", self.indexes(build))

    @property
    def is_refused(self) -> bool:
        """Whether the API server refuses something on purpose: a quota, a policy, a field that it does not know."""
        return any(not (why.by_failure or why.is_terminating) for why in self.rejections.values())
