"""What can be done for a job: actions that change the cluster, lookups that read what no cache holds, and the plan of both.

Everything is frozen; nothing here decides.
"""

from dataclasses import dataclass
from typing import Protocol, Self

from ddpjob_operator.api import names
from ddpjob_operator.api.resource import Body
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.model import Job, Kind


class Manifest(Protocol):
    """What an object to create is rendered from."""

    def render(self) -> Body:
        """The object as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePod:
    """Create a pod; one of this name that belongs to the same job is as good."""

    name: str
    manifest: Manifest

    @property
    def body(self) -> Body:
        """The pod as JSON, rendered at each call: a plan holds thousands of pods, most of which are sent much later."""
        return self.manifest.render()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateObject:
    """Create an object that belongs to the job; one of this name that belongs to the same job is as good.

    The names of all objects and pods of a job differ.
    """

    kind: Kind
    name: str
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchObject:
    """Merge-patch this object, if it still is the version that was seen."""

    kind: Kind
    name: str
    resource_version: str
    """Empty for any version."""
    patch: Body
    """`metadata.uid` in it restricts the patch to this very object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteObject:
    """Delete this very object (by uid)."""

    kind: Kind
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePod:
    """Delete this very pod (by uid), with a grace; None is the pod's own."""

    name: str
    uid: str
    grace_seconds: int | None
    resource_version: str = ""
    """Delete it only if it still is this version; empty for any version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePods:
    """Delete all of the job's pods of one attempt, or of all, in one request and with each pod's own grace."""

    attempt: int | None


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
    """Look up the tail of a container's log. An unreadable log counts as empty."""

    pod: str
    uid: str
    container: str = names.MAIN_CONTAINER


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadNode:
    """Look up, every few seconds, whether this node is gone and whether it takes new pods."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadWarning:
    """Look up, every few seconds, what the kubelet reports about this pod that does not start."""

    pod: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadScaleUp:
    """Look up, every few seconds, whether an autoscaler has announced nodes for pods of this job, of any attempt."""

    job: str


SetUp = CreatePod | CreateObject | PatchObject
"""What a gang needs. Each depends on those before it."""
Removal = DeletePod | DeletePods | DeleteObject | LowerPodDeadline | DeleteJob
"""What stops or deletes something. Nothing depends on it: what waits for the end of a pod looks at the pod."""
Action = SetUp | Removal
Lookup = ReadLog | ReadNode | ReadWarning | ReadScaleUp


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now for one job."""

    status: DDPJobStatus
    """The status that the job should show; equal to the observed one means no write."""
    write_ahead: bool = False
    """Write the status first, only if the job is still the version that was seen; there are no actions then."""
    actions: tuple[Action, ...] = ()
    """In order: everything before the first CreatePod is done before it; pods are created in parallel."""
    lookups: tuple[Lookup, ...] = ()
    wake_at: float | None = None
    """Plan again at this time at the latest, even if nothing happens."""

    @classmethod
    def nothing(cls, job: Job) -> Self:
        """Leave everything as it is."""
        return cls(status=job.status)
