"""What can be decided for a job: small values, each with its facts.

Policies make them, `plan` chooses one, and `render` turns it into a status and into actions.
"""

from dataclasses import dataclass
from enum import Enum, auto

from ddpjob_operator.api.names import Phase
from ddpjob_operator.api.status import Failure, Progress, Restarts
from ddpjob_operator.core.actions import Lookup


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepWhole:
    """Create every pod that the gang lacks, and let those that exist run."""

    reason: str
    message: str
    created: bool
    """Whether every pod of the gang exists."""
    running: bool
    """Whether every pod exists and the gang has run or runs."""


class Stop(Enum):
    """How the pods of earlier attempts stop."""

    AT_ONCE = auto()
    """With a short grace: they have no work to save."""
    WITH_OWN_GRACE = auto()
    """With the grace of each pod, in which its program may save its work."""
    AND_KEEP_LOGS = auto()
    """By their kubelets, so that the pods stay with their logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitToStart:
    """Create no pod yet: pods of earlier attempts still stop, or the delay before the attempt has not passed."""

    reason: str
    message: str
    stop: Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitEvidence:
    """The attempt is over, and what follows depends on evidence that is still to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartNextAttempt:
    """End the current attempt: the status names the next one before any pod of the current one is stopped."""

    phase: Phase
    reason: str
    message: str
    delay_seconds: float = 0.0
    """How long the next attempt waits before its pods are created."""
    releases_partial_gang: bool = False
    """Whether the gang only releases the nodes of a part of its pods; it keeps its position in the queue then."""
    shrinks_to: int | None = None
    """The number of nodes of the next attempt, where it does not get all; None for spec.nodes."""
    restarts: Restarts | None = None
    """The counters after a failure."""
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspend:
    """End the current attempt since spec.suspend is true: the status says so before any pod is stopped."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacePods:
    """Replace lost pods while the others stay in their attempt: the status names the new pods before any is created."""

    ranks: tuple[int, ...]
    """Node ranks of the lost pods."""
    message: str
    restarts: Restarts
    """The counters after the loss."""
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class StaySuspended:
    """Run no pod until spec.suspend is false again."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """End the job for good."""

    succeeded: bool
    reason: str
    message: str
    failure: Failure | None = None
    progress: Progress | None = None
    """The last progress of a job that succeeded, where its log holds some."""


#: The status is written before any action that follows from these.
WrittenAhead = StartNextAttempt | Suspend | ReplacePods
Decision = KeepWhole | WaitToStart | AwaitEvidence | WrittenAhead | StaySuspended | Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The result of one policy: what to do now, or when to ask it again."""

    decision: Decision | None = None
    """None where the policy leaves the decision to those after it."""
    wake_at: float | None = None
    """When the policy may decide otherwise although nothing has happened, in seconds since the epoch."""
    lookups: tuple[Lookup, ...] = ()
    """What it needs to know."""
