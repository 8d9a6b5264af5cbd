"""Every name that a DDPJob shows to the outside: group, labels, annotations, condition types, reasons.

Each stands once, with one sentence. What pods and operator share (variables, exit codes, the progress prefix) stands in
`ddpjob_ranks.contract` and is re-exported here as `contract`.
"""

from enum import StrEnum
from typing import Final

from ddpjob_ranks import contract as contract

GROUP: Final = "ddpjob.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "DDPJob"
PLURAL: Final = "ddpjobs"

#: Value of MANAGED_BY on everything that the operator creates; its watches select by it.
MANAGER: Final = "ddpjob-operator"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"

#: Name of the job, for people and for `kubectl -l`.
LABEL_JOB: Final = "ddpjob.dev/job"
#: uid of the job object, which a re-created job of the same name does not share.
LABEL_JOB_UID: Final = "ddpjob.dev/job-uid"
#: Attempt that a pod belongs to, from 1.
LABEL_ATTEMPT: Final = "ddpjob.dev/attempt"
#: Node rank of a pod, from 0.
LABEL_RANK: Final = "ddpjob.dev/rank"
#: Prefix of labels and annotations that a user's template may not set.
RESERVED_PREFIX: Final = "ddpjob.dev/"
#: Hash of the part of the spec that a pod was rendered from.
ANNOTATION_SPEC_HASH: Final = "ddpjob.dev/spec-hash"

#: Name of the container that runs the program, in every pod.
MAIN_CONTAINER: Final = "trainer"

#: Longest job name: the longest child is `<job>-<attempt>-<rank>`, whose host name holds 63 characters, with an
#: attempt below 100000 and a rank below 10000.
MAX_JOB_NAME_LENGTH: Final = 52
#: Most pods of one job.
MAX_NODES: Final = 4096

#: Variables that the operator sets in every pod and that neither `env` nor `template` may set.
RESERVED_VARIABLES: Final = (
    contract.MASTER_ADDR,
    contract.MASTER_PORT,
    contract.WORLD_SIZE,
    contract.RANK,
    contract.LOCAL_RANK,
    contract.LOCAL_WORLD_SIZE,
    contract.NODE_RANK,
    contract.NNODES,
    contract.NPROC_PER_NODE,
    contract.PET_NNODES,
    contract.PET_NODE_RANK,
    contract.PET_NPROC_PER_NODE,
    contract.PET_MASTER_ADDR,
    contract.PET_MASTER_PORT,
    contract.DDPJOB_NAME,
    contract.DDPJOB_NAMESPACE,
    contract.DDPJOB_UID,
    contract.DDPJOB_ATTEMPT,
    contract.DDPJOB_CHECKPOINT_DIR,
    contract.DDPJOB_DATA_DIR,
    contract.DDPJOB_GPUS_PER_NODE,
)


class Phase(StrEnum):
    """Where a job stands, in one word for people; programs read the conditions."""

    PENDING = "Pending"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ConditionType(StrEnum):
    """The conditions of a job; each is True, False or absent (never was)."""

    #: All pods of the current attempt exist.
    CREATED = "Created"
    #: All pods of the current attempt run.
    RUNNING = "Running"
    #: The gang is being stopped and started again.
    RESTARTING = "Restarting"
    #: The job is suspended and none of its pods is wanted.
    SUSPENDED = "Suspended"
    #: The operator cannot act on the job, whose pods stay as they are, until somebody changes something.
    STALLED = "Stalled"
    #: Terminal: every rank ended with exit code 0.
    SUCCEEDED = "Succeeded"
    #: Terminal: the job will not be tried again.
    FAILED = "Failed"


class Reason(StrEnum):
    """The closed list of reasons in status and conditions."""

    # What a job is doing or waits for.
    CREATING = "Creating"  # Pods are being created.
    UNSCHEDULABLE = "Unschedulable"  # The scheduler finds no place for a pod.
    QUOTA_EXCEEDED = "QuotaExceeded"  # A quota of the namespace has no room for a pod.
    POD_REJECTED = "PodRejected"  # The API server refuses a pod: admission, or a mistake in the template.
    IMAGE_PULL = "ImagePull"  # An image cannot be pulled.
    CONTAINER_CONFIG = "ContainerConfig"  # A container cannot be made: missing Secret, ConfigMap, volume or the like.
    STARTING = "Starting"  # Pods have a node and are not all running yet.
    STOPPING = "Stopping"  # Old pods are being stopped; nothing new starts before.
    TERMINATING_TOO_LONG = "TerminatingTooLong"  # An old pod outlives its grace on a node that is not known to be lost.
    BACKING_OFF = "BackingOff"  # The gang failed several times in a row and waits before it starts again.
    RUNNING = "Running"  # All ranks run.
    FINISHING = "Finishing"  # Some ranks ended well while others run on.
    SUSPENDED = "Suspended"  # spec.suspend is set.
    SUCCEEDED = "Succeeded"  # All ranks ended with exit code 0.

    # Why an attempt ended; `core/failure/classes.py` says how each is recognised and what follows.
    PROGRAM_ERROR = "ProgramError"  # A rank's program ended with a non-zero exit code.
    BAD_COMMAND = "BadCommand"  # The program could not be started.
    BAD_CONFIG = "BadConfig"  # The trainer refused its configuration; another attempt would end the same.
    OUT_OF_MEMORY = "OutOfMemory"  # A rank ran out of memory, of the container or of the GPU.
    KILLED = "Killed"  # A rank died of a signal.
    COLLECTIVE_TIMEOUT = "CollectiveTimeout"  # A collective timed out and no other cause is known.
    COLLECTIVE_ERROR = "CollectiveError"  # Ranks lost the connection to each other and no other cause is known.
    HUNG = "Hung"  # Training made no progress for too long.
    START_DEADLINE = "StartDeadline"  # The pods had nodes and did not all run in time.
    FINISH_DEADLINE = "FinishDeadline"  # Some ranks ended well and the others did not end in time.
    POD_DELETED = "PodDeleted"  # Somebody deleted a pod.
    EVICTED = "Evicted"  # A pod was evicted.
    PREEMPTED = "Preempted"  # A pod made room for one of higher priority.
    NODE_DRAINED = "NodeDrained"  # A node was drained or shut down.
    NODE_LOST = "NodeLost"  # A node stopped answering.
    POD_DISRUPTED = "PodDisrupted"  # The cluster took a pod away for another reason.
    GANG_GIVEN_BACK = "GangGivenBack"  # A gang with a place for some of its pods only gave those back.
    STOPPED_WITH_CHECKPOINT = "StoppedWithCheckpoint"  # The program saved its work and stopped on request.
    SPEC_CHANGED = "SpecChanged"  # The pods no longer match the spec, which was edited while suspended.

    # Why a job ended for good, beside the reasons above.
    INVALID_SPEC = "InvalidSpec"  # The spec cannot be run.
    QUEUE_DEADLINE = "QueueDeadline"  # The gang found no place in time.
    ACTIVE_DEADLINE = "ActiveDeadline"  # The job was active for longer than allowed.
    TOO_MANY_INFRASTRUCTURE_RESTARTS = "TooManyInfrastructureRestarts"  # Uncounted restarts are bounded, too.
