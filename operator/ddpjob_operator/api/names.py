"""The names of the public interface of a DDPJob: group, labels, annotations, condition types, reasons.

Each name is defined once, with one sentence. Names that pods and operator share (variables, exit codes, the progress
prefix) are defined in `ddpjob_ranks.contract`, which this module exports as `contract`.
"""

from enum import StrEnum
from typing import Final

from ddpjob_ranks import contract as contract

GROUP: Final = "ddpjob.dev"
VERSION: Final = "v1beta1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
#: Earlier versions with the same schema, which are still served. docs/reference/api-versions.md says for how long.
DEPRECATED_VERSIONS: Final = ("v1alpha1",)
#: Every `apiVersion` that a manifest of a DDPJob may have.
API_VERSIONS: Final = (API_VERSION, *(f"{GROUP}/{version}" for version in DEPRECATED_VERSIONS))
KIND: Final = "DDPJob"
PLURAL: Final = "ddpjobs"

#: Value of MANAGED_BY on everything that the operator creates, for people; the operator itself does not rely on it.
MANAGER: Final = "ddpjob-operator"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"

#: The operator as the value of spec.managedBy.
CONTROLLER: Final = f"{GROUP}/operator"

#: Name of the job, for selectors of `kubectl`.
LABEL_JOB: Final = "ddpjob.dev/job"
#: uid of the job object, which differs from that of an earlier job of the same name. The operator's watches select by it.
LABEL_JOB_UID: Final = "ddpjob.dev/job-uid"
#: Number of the attempt that a pod belongs to, from 1.
LABEL_ATTEMPT: Final = "ddpjob.dev/attempt"
#: Node rank of a pod, from 0.
LABEL_RANK: Final = "ddpjob.dev/rank"
#: "true" on a pod whose launcher can start its ranks again in place, and waits for another pod that is replaced.
LABEL_SUPERVISED: Final = "ddpjob.dev/supervised"
#: How often the pod of this rank has been replaced in its attempt; absent on the first one.
LABEL_REPLACEMENT: Final = "ddpjob.dev/replacement"
#: "true" on a pod without a program, which holds a place for a node that a job on fewer nodes lacks.
LABEL_PLACEHOLDER: Final = "ddpjob.dev/placeholder"
#: "true" on a spare pod, which an older release created to replace lost pods. Its rank is one that the gang does not have.
LABEL_SPARE: Final = "ddpjob.dev/spare"
#: Prefix of labels and annotations that a user's template may not set.
RESERVED_PREFIX: Final = "ddpjob.dev/"
#: Hash of the fields of the spec that the pod was rendered from.
ANNOTATION_SPEC_HASH: Final = "ddpjob.dev/spec-hash"
#: The scheduling provider that a pod was created for; absent without one.
ANNOTATION_SCHEDULING: Final = "ddpjob.dev/scheduling-provider"
#: On a PodGroup: the versions, as a hash, of the pods that the plugin Coscheduling refused because of each other.
ANNOTATION_REFUSED: Final = "ddpjob.dev/refused-pods"
#: On a PodGroup: the least number of pods that get nodes together, where that is not all of them.
ANNOTATION_LEAST_NODES: Final = "ddpjob.dev/least-nodes"

#: The container that `kubectl logs` and `kubectl exec` mean without being told one.
ANNOTATION_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
#: Values with which Karpenter and the cluster autoscaler do not remove a node, to save costs, while the pod runs there
#: (https://karpenter.sh/docs/concepts/disruption and the cluster autoscaler's FAQ).
UNDISTURBED: Final = {"karpenter.sh/do-not-disrupt": "true", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}

#: Annotation of a pod for Volcano, and label of a pod for coscheduling: the name of its PodGroup.
VOLCANO_GROUP_NAME: Final = "scheduling.k8s.io/group-name"
COSCHEDULING_GROUP_NAME: Final = "scheduling.x-k8s.io/pod-group"

#: What Kueue reads and sets on the pods of a group
#: (https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods and https://kueue.sigs.k8s.io/docs/reference/labels-and-annotations).
KUEUE_QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"
KUEUE_GROUP_NAME: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_GROUP_TOTAL_COUNT: Final = "kueue.x-k8s.io/pod-group-total-count"
KUEUE_GROUP_POD_INDEX: Final = "kueue.x-k8s.io/pod-group-pod-index"
KUEUE_RETRIABLE_IN_GROUP: Final = "kueue.x-k8s.io/retriable-in-group"
KUEUE_ROLE_HASH: Final = "kueue.x-k8s.io/role-hash"
KUEUE_IS_GROUP_WORKLOAD: Final = "kueue.x-k8s.io/is-group-workload"
KUEUE_REQUIRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-required-topology"
KUEUE_PREFERRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-preferred-topology"
#: The finalizer that keeps a pod until its group has replaced it or has finished.
KUEUE_FINALIZER: Final = "kueue.x-k8s.io/managed"

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
    contract.DDPJOB_CHECKPOINT_URI,
    contract.DDPJOB_CACHE_DIR,
    contract.DDPJOB_DATA_DIR,
    contract.DDPJOB_GPUS_PER_NODE,
    contract.DDPJOB_IN_PLACE_RESTARTS,
    contract.DDPJOB_FINAL_EXIT_CODES,
    contract.DDPJOB_STATE_IN_MEMORY,
    contract.DDPJOB_REPLACEMENTS,
    contract.DDPJOB_REPLACEMENT_SECONDS,
)


class ProviderName(StrEnum):
    """What schedules the pods of a job together."""

    NATIVE = "native"
    KUEUE = "kueue"
    VOLCANO = "volcano"
    COSCHEDULING = "coscheduling"
    NONE = "none"


class Phase(StrEnum):
    """The phase of a job, as a summary for people. Programs read the conditions."""

    PENDING = "Pending"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ConditionType(StrEnum):
    """The conditions of a job. Each is True or False, or absent if it was never true."""

    #: All pods of the current attempt exist.
    CREATED = "Created"
    #: All pods of the current attempt run.
    RUNNING = "Running"
    #: The pods are being stopped, and the next attempt starts.
    RESTARTING = "Restarting"
    #: The job is suspended and has no pods.
    SUSPENDED = "Suspended"
    #: The operator cannot act on the job until somebody changes something. Its pods stay as they are.
    STALLED = "Stalled"
    #: Terminal: every rank ended with exit code 0.
    SUCCEEDED = "Succeeded"
    #: Terminal: there is no further attempt.
    FAILED = "Failed"


class Reason(StrEnum):
    """All reasons in status and conditions."""

    # What the job does or waits for.
    CREATING = "Creating"  # Pods are being created.
    UNSCHEDULABLE = "Unschedulable"  # The scheduler finds no node for a pod.
    QUEUED = "Queued"  # The queue has not admitted the job.
    QUOTA_EXCEEDED = "QuotaExceeded"  # A ResourceQuota of the namespace is used up.
    POD_REJECTED = "PodRejected"  # The API server refuses a pod, by admission or for a mistake in the template.
    REMOVAL_REJECTED = "RemovalRejected"  # The API server refuses to delete or to stop what a finished job has left.
    OPERATOR_DEFECT = "OperatorDefect"  # The operator itself fails on the job; the reason of the condition Stalled.
    IMAGE_PULL = "ImagePull"  # An image cannot be pulled.
    CONTAINER_CONFIG = "ContainerConfig"  # A container cannot be created, for example because a Secret is missing.
    STARTING = "Starting"  # All pods have nodes, and not all run yet.
    STOPPING = "Stopping"  # Pods of an earlier attempt are being stopped before new pods start.
    TERMINATING_TOO_LONG = "TerminatingTooLong"  # A pod exceeds its grace period on a node that may be alive.
    BACKING_OFF = "BackingOff"  # After several failures in a row the next attempt is delayed.
    RUNNING = "Running"  # All ranks run.
    RESTARTED_IN_PLACE = "RestartedInPlace"  # All ranks started again within their pods; the reason of an event only.
    FINISHING = "Finishing"  # Some ranks have succeeded while others still run.
    SUSPENDED = "Suspended"  # spec.suspend is set.
    SUCCEEDED = "Succeeded"  # All ranks ended with exit code 0.

    # Why an attempt ended; `core/failure/classes.py` says how each is recognised and what follows.
    PROGRAM_ERROR = "ProgramError"  # A rank's program ended with a non-zero exit code.
    INIT_FAILED = "InitFailed"  # An init container of the template failed, so that the program never started.
    BAD_COMMAND = "BadCommand"  # The program could not be started.
    BAD_CONFIG = "BadConfig"  # The trainer refused its configuration.
    OUT_OF_MEMORY = "OutOfMemory"  # A rank used up the memory of its container or GPU.
    KILLED = "Killed"  # A signal killed a rank.
    COLLECTIVE_TIMEOUT = "CollectiveTimeout"  # A collective timed out and no other cause is known.
    COLLECTIVE_ERROR = "CollectiveError"  # Ranks lost their connections to each other and no other cause is known.
    HUNG = "Hung"  # Training made no progress for too long.
    POD_DEADLINE = "PodDeadline"  # The kubelet ended a pod whose activeDeadlineSeconds had passed.
    START_DEADLINE = "StartDeadline"  # Not all pods ran within deadlines.startSeconds.
    FINISH_DEADLINE = "FinishDeadline"  # Not all ranks ended within deadlines.finishSeconds.
    POD_DELETED = "PodDeleted"  # Somebody other than the operator deleted a pod.
    STORAGE_LIMIT = "StorageLimit"  # A pod was evicted because it used more storage than its own limits allow.
    EVICTED = "Evicted"  # A pod was evicted.
    PREEMPTED = "Preempted"  # A pod was preempted by one of higher priority.
    NODE_DRAINED = "NodeDrained"  # A node was drained or shut down.
    NODE_LOST = "NodeLost"  # A node stopped answering.
    POD_DISRUPTED = "PodDisrupted"  # The cluster removed a pod for another reason.
    GANG_GIVEN_BACK = "GangGivenBack"  # Only some of the pods found nodes, and they were released.
    STOPPED_WITH_CHECKPOINT = "StoppedWithCheckpoint"  # The program saved its work and stopped on request.
    SPEC_CHANGED = "SpecChanged"  # The spec was edited while the job was suspended.
    RESIZED = "Resized"  # spec.nodes was changed while the job ran.

    # Why a job failed, in addition to the reasons above.
    INVALID_SPEC = "InvalidSpec"  # This release cannot read the spec.
    QUEUE_DEADLINE = "QueueDeadline"  # Not all pods found nodes within deadlines.queueSeconds.
    ACTIVE_DEADLINE = "ActiveDeadline"  # The job exceeded deadlines.activeSeconds.
    TOO_MANY_INFRASTRUCTURE_RESTARTS = "TooManyInfrastructureRestarts"  # Too many restarts that do not count.
