"""Everything that can go wrong with a job: how it is recognised, whether it counts, and what follows.

Decisions use `KINDS`, and the table in docs/reference/failures.md is generated from the same rows (`reference/failures.py`), so
the two cannot differ. A restart rule of the user for an exit code takes precedence, unless the cluster removed the pod:
programs react to SIGTERM with any exit code, torchrun with 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ddpjob_operator.api.names import Reason


class Kind(Enum):
    """What follows from a failure."""

    COUNTED = "restart, counted"
    UNCOUNTED = "restart, not counted"
    FINAL = "the job fails"
    WAITS = "the job waits and reports it"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureClass:
    """One way in which an attempt or a job ends, or for which a job waits."""

    reason: Reason
    kind: Kind
    recognised: str
    """How the operator recognises it."""
    example: str
    """An example of what the user reads, at the end of the status message."""
    how: str = ""
    """What the rank did or what was done to it; the default is how its program ended."""
    may_be_the_node: bool = False
    """Whether the node may be the cause. A node with two such failures is avoided."""
    is_echo: bool = False
    """Whether another rank's end is likely to be the cause."""


CLASSES = (
    FailureClass(
        reason=Reason.PROGRAM_ERROR,
        kind=Kind.COUNTED,
        recognised="any other exit code; under torchrun the worker's, from torchrun's table; or SIGABRT after an exception",
        example="ended with exit code 1 …: ValueError: label 12 is out of range for 10 classes",
        may_be_the_node=True,
    ),
    FailureClass(
        reason=Reason.INIT_FAILED,
        kind=Kind.COUNTED,
        recognised="an init container of spec.template failed, with any exit code; rules of restart.rules are for the program and do"
        " not apply",
        example="did not start …: init container fetch ended with exit code 2: wget: bad address 'bucket'",
        how="did not start",
    ),
    FailureClass(
        reason=Reason.BAD_COMMAND,
        kind=Kind.FINAL,
        recognised="the container runtime finds no such program, or may not execute it; or Python or a shell finds no such script"
        " or module before the first step",
        example='could not start …: exec: "trian.py": executable file not found in $PATH',
        how="could not start",
    ),
    FailureClass(
        reason=Reason.BAD_CONFIG,
        kind=Kind.FINAL,
        recognised="exit code 2 of the built-in trainer; or a program without a step ends by a ModuleNotFoundError, an import of a"
        " name that a module does not have, a SyntaxError or argparse's message about a wrong argument",
        example="ended with exit code 2 …: trainer.recipe …; another attempt would end in the same way",
    ),
    FailureClass(
        reason=Reason.OUT_OF_MEMORY,
        kind=Kind.COUNTED,
        recognised="OOMKilled with any exit code except 0; or an out-of-memory exception (CUDA, the allocator, Python's);"
        " or exit code 71 of the trainer",
        example="ran out of memory …: it was OOMKilled: raise resources.limits.memory or use less",
        how="ran out of memory",
    ),
    FailureClass(
        reason=Reason.KILLED,
        kind=Kind.COUNTED,
        recognised="a signal that the operator did not send killed the program, other than SIGABRT after an exception",
        example="was killed by signal 9 (SIGKILL)",
        may_be_the_node=True,
    ),
    FailureClass(
        reason=Reason.COLLECTIVE_TIMEOUT,
        kind=Kind.COUNTED,
        recognised="an exception of a collective that timed out, on every rank that failed",
        example="timed out waiting for other ranks …: RuntimeError: Timed out waiting 1800000ms for recv operation to complete",
        is_echo=True,
        how="timed out waiting for other ranks",
    ),
    FailureClass(
        reason=Reason.COLLECTIVE_ERROR,
        kind=Kind.COUNTED,
        recognised="an exception of a lost connection (or exit code 69 of the trainer), on every rank that failed",
        example="lost other ranks …: RuntimeError: Connection closed by peer",
        is_echo=True,
        how="lost other ranks",
    ),
    FailureClass(
        reason=Reason.HUNG,
        kind=Kind.COUNTED,
        recognised="no new step or phase in rank 0's log for deadlines.hangSeconds, while the log can be read; or exit code"
        " 70 of the trainer, whose ranks determined which of them is late",
        how="made no progress",
        example="made no progress …: the log of rank 0 shows no progress after step 120 (train) for 15m0s (deadlines.hangSeconds); the pods are kept",
    ),
    FailureClass(
        reason=Reason.IMAGE_PULL,
        kind=Kind.COUNTED,
        recognised="deadlines.startSeconds passed while an image cannot be pulled; an image that never can be (InvalidImageName,"
        " ErrImageNeverPull) ends the job at once",
        example="did not start …: 2 of 4 pods wait: image x:2.1 cannot be pulled: not found; deadlines.startSeconds is 10m0s",
        how="did not start",
    ),
    FailureClass(
        reason=Reason.CONTAINER_CONFIG,
        kind=Kind.COUNTED,
        recognised="deadlines.startSeconds passed while a container cannot be created (Secret, ConfigMap, volume); or the"
        " runtime fails to start it",
        example='did not start …: 4 of 4 pods wait: secret "hf-token" not found; deadlines.startSeconds is 10m0s',
        how="did not start",
    ),
    FailureClass(
        reason=Reason.START_DEADLINE,
        kind=Kind.COUNTED,
        recognised="deadlines.startSeconds passed for any other cause",
        example="did not start …: 1 of 4 pods are starting; deadlines.startSeconds is 10m0s",
        how="did not start",
        may_be_the_node=True,
    ),
    FailureClass(
        reason=Reason.FINISH_DEADLINE,
        kind=Kind.COUNTED,
        recognised="deadlines.finishSeconds passed after the first rank succeeded",
        example="was ended …: it still ran deadlines.finishSeconds (1h0m) after the first rank had succeeded",
        how="was ended",
    ),
    FailureClass(
        reason=Reason.POD_DEADLINE,
        kind=Kind.COUNTED,
        recognised="the kubelet's DeadlineExceeded for activeDeadlineSeconds of spec.template, and the program answered SIGTERM"
        " with exit code 0 (torchrun: with its SignalException) or was killed",
        example="was ended …: it ran longer than activeDeadlineSeconds of its pod (3600)",
        how="was ended",
    ),
    FailureClass(
        reason=Reason.POD_DELETED,
        kind=Kind.UNCOUNTED,
        recognised="a pod was deleted, and not by the operator",
        example="was deleted …: the operator did not delete it",
        how="was deleted",
    ),
    FailureClass(
        reason=Reason.STORAGE_LIMIT,
        kind=Kind.COUNTED,
        recognised="the kubelet's Evicted for a limit of the pod's own: ephemeral-storage of a container, or sizeLimit of an emptyDir",
        example='was evicted …: Usage of EmptyDir volume "scratch" exceeds the limit "1Gi".',
        how="was evicted for its own storage limit",
    ),
    FailureClass(
        reason=Reason.EVICTED,
        kind=Kind.UNCOUNTED,
        recognised="DisruptionTarget EvictionByEvictionAPI, or the kubelet's Evicted for a shortage of the node",
        example="was evicted …: Eviction API: evicting",
        how="was evicted",
    ),
    FailureClass(
        reason=Reason.PREEMPTED,
        kind=Kind.UNCOUNTED,
        recognised="DisruptionTarget PreemptionByScheduler, or the kubelet's Preempting",
        example="was preempted …: default-scheduler: preempting to accommodate a higher priority pod",
        how="was preempted",
    ),
    FailureClass(
        reason=Reason.NODE_DRAINED,
        kind=Kind.UNCOUNTED,
        recognised="evicted from a node that is cordoned, or ended by the node's shutdown",
        example="was drained from its node …: node gpu-3 is being drained",
        how="was drained from its node",
    ),
    FailureClass(
        reason=Reason.NODE_LOST,
        kind=Kind.UNCOUNTED,
        recognised="its node does not exist, is unreachable (Ready is Unknown) or out of service, and the pod has outlived its grace"
        " after a deletion",
        example="was lost …: node gpu-3 stopped answering",
        may_be_the_node=True,
        how="was lost",
    ),
    FailureClass(
        reason=Reason.POD_DISRUPTED,
        kind=Kind.UNCOUNTED,
        recognised="any other DisruptionTarget; a pod that the kubelet refused or lost track of",
        example="was removed by the cluster …: DeletionByTaintManager: Taint manager: deleting due to NoExecute taint",
        how="was removed by the cluster",
        may_be_the_node=True,  # whose devices fail, so that its kubelet refuses pod after pod (UnexpectedAdmissionError)
    ),
    FailureClass(
        reason=Reason.STOPPED_WITH_CHECKPOINT,
        kind=Kind.UNCOUNTED,
        recognised="exit code 75, and rank 0's termination message has checkpointStep=<n>, larger than at every earlier stop",
        example="stopped on request …; it had saved step 1200",
        how="stopped on request",
    ),
    FailureClass(
        reason=Reason.UNSCHEDULABLE,
        kind=Kind.WAITS,
        recognised="the scheduler finds no node for a pod; deadlines.queueSeconds limits it",
        example="4 of 4 pods have no node: 0/4 nodes have nvidia.com/gpu: 8 free",
    ),
    FailureClass(
        reason=Reason.QUEUED,
        kind=Kind.WAITS,
        recognised="the queue that spec.scheduling.queueName names has not admitted the job; deadlines.queueSeconds limits it",
        example="queued in team-a: 3 jobs before it",
    ),
    FailureClass(
        reason=Reason.QUOTA_EXCEEDED,
        kind=Kind.WAITS,
        recognised="the API server refuses a pod for a quota; deadlines.queueSeconds limits it",
        example="2 of 4 pods exceed quota team: 8 of 8 requests.nvidia.com/gpu used, 4 more wanted by each pod",
    ),
    FailureClass(
        reason=Reason.POD_REJECTED,
        kind=Kind.WAITS,
        recognised="the API server refuses a pod, or the Service, for another reason; after deadlines.startSeconds a job that never ran fails,"
        " but not while the API server itself fails (500, for example by a broken webhook), which ends without the job",
        example='the API server refuses to create pod resnet-1-0: strict decoding error: unknown field "spec.nodeSelektor"',
    ),
    FailureClass(
        reason=Reason.REMOVAL_REJECTED,
        kind=Kind.WAITS,
        recognised="the API server refuses to delete or to stop what a finished job has left; it is the reason of the condition"
        " Stalled",
        example="the API server refuses to delete DDPJob resnet: admission webhook denied the request",
    ),
    FailureClass(
        reason=Reason.OPERATOR_DEFECT,
        kind=Kind.WAITS,
        recognised="the operator fails on the job with an exception that it does not expect; its pods continue, and it is the"
        " reason of the condition Stalled",
        example="the operator fails on this job by a defect (KeyError in core/policies/hang.py, line 40) and leaves the job and its"
        " pods as they are; …",
    ),
    FailureClass(
        reason=Reason.GANG_GIVEN_BACK,
        kind=Kind.WAITS,
        recognised="for 15 to 45 s (longer each time) some pods had a node and the others had none",
        example="only 2 of 4 pods found a node: the gang releases its nodes, and tries again after a pause",
    ),
    FailureClass(
        reason=Reason.TERMINATING_TOO_LONG,
        kind=Kind.WAITS,
        recognised="a pod of an earlier attempt still exists a minute after its grace period, although its node seems to work",
        example="pod resnet-1-0 should have stopped on node gpu-3, which is not known to be lost: restart the kubelet there, or …",
    ),
    FailureClass(
        reason=Reason.QUEUE_DEADLINE,
        kind=Kind.FINAL,
        recognised="deadlines.queueSeconds passed without a node for every pod",
        example="the gang did not get all its nodes within deadlines.queueSeconds (1h0m): 4 of 4 pods have no node: …",
    ),
    FailureClass(
        reason=Reason.ACTIVE_DEADLINE,
        kind=Kind.FINAL,
        recognised="deadlines.activeSeconds on nodes, over all attempts",
        example="the job was active for deadlines.activeSeconds (2d0h)",
    ),
    FailureClass(
        reason=Reason.INVALID_SPEC,
        kind=Kind.FINAL,
        recognised="a stored spec that this release cannot read, of a job that never ran",
        example="spec.nodes: Input should be greater than or equal to 1",
    ),
    FailureClass(
        reason=Reason.TOO_MANY_INFRASTRUCTURE_RESTARTS,
        kind=Kind.FINAL,
        recognised="100 restarts within a day that did not count, without progress between them",
        example="…; the job was restarted 100 times within 1d0h for causes that do not count, without progress in an attempt that ran for 10s",
    ),
)

HOW: Mapping[str, str] = {row.reason: row.how for row in CLASSES}
KINDS: Mapping[str, Kind] = {row.reason: row.kind for row in CLASSES}
ECHOES = frozenset(row.reason for row in CLASSES if row.is_echo)
_UNCOUNTED = frozenset(row.reason for row in CLASSES if row.kind == Kind.UNCOUNTED)
#: The cluster or somebody took the pod away.
TAKEN_AWAY = _UNCOUNTED - {Reason.STOPPED_WITH_CHECKPOINT}
#: The program was asked to stop, so the programs of the other ranks can still save their work. Ranks that lost their peer
#: with its node are blocked in a collective instead.
ASKED_TO_STOP = _UNCOUNTED - {Reason.NODE_LOST}
MAY_BE_THE_NODE = frozenset(row.reason for row in CLASSES if row.may_be_the_node)
