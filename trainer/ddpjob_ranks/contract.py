"""What a training pod and the operator agree on: variables, exit codes, progress line, termination message.

Everything that the two share is defined here once, with one sentence each. Standard library only: the
operator imports this module and must not pay for torch. It holds names and limits, no behaviour.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

# --- Environment -----------------------------------------------------------------------------------------------------

#: Host name or address of global rank 0, where the process group meets.
MASTER_ADDR: Final = "MASTER_ADDR"
#: TCP port on MASTER_ADDR that global rank 0 listens on.
MASTER_PORT: Final = "MASTER_PORT"
#: Number of processes of the whole job.
WORLD_SIZE: Final = "WORLD_SIZE"
#: Global rank of this process; in a pod's environment, of the pod's first process.
RANK: Final = "RANK"
#: Rank of this process on its node, which is also the index of its GPU; set for workers only.
LOCAL_RANK: Final = "LOCAL_RANK"
#: Number of processes on this node; set for workers only.
LOCAL_WORLD_SIZE: Final = "LOCAL_WORLD_SIZE"
#: Rank of this pod among the job's pods.
NODE_RANK: Final = "NODE_RANK"
#: Number of pods of the job.
NNODES: Final = "NNODES"
#: Number of processes that this pod is to start.
NPROC_PER_NODE: Final = "NPROC_PER_NODE"

#: torchrun's default for --nnodes.
PET_NNODES: Final = "PET_NNODES"
#: torchrun's default for --node-rank.
PET_NODE_RANK: Final = "PET_NODE_RANK"
#: torchrun's default for --nproc-per-node.
PET_NPROC_PER_NODE: Final = "PET_NPROC_PER_NODE"
#: torchrun's default for --master-addr.
PET_MASTER_ADDR: Final = "PET_MASTER_ADDR"
#: torchrun's default for --master-port.
PET_MASTER_PORT: Final = "PET_MASTER_PORT"

#: torchrun's default for --max-restarts.
PET_MAX_RESTARTS: Final = "PET_MAX_RESTARTS"
#: torchrun's default for --rdzv-backend. With c10d the agents of all nodes restart their workers together.
PET_RDZV_BACKEND: Final = "PET_RDZV_BACKEND"
#: torchrun's default for --rdzv-endpoint.
PET_RDZV_ENDPOINT: Final = "PET_RDZV_ENDPOINT"
#: torchrun's default for --rdzv-id.
PET_RDZV_ID: Final = "PET_RDZV_ID"
#: torchrun's default for --rdzv-conf.
PET_RDZV_CONF: Final = "PET_RDZV_CONF"
#: torchrun's default for --local-addr, by which c10d orders the nodes.
PET_LOCAL_ADDR: Final = "PET_LOCAL_ADDR"
#: "1": workers do not use the store of torchrun's agents, where each node would read under its own number of restarts.
TORCH_DISABLE_SHARE_RDZV_TCP_STORE: Final = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
#: Set by torchrun for workers: "True" if they use the store of its agents.
TORCHELASTIC_USE_AGENT_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"

#: Name of the DDPJob.
DDPJOB_NAME: Final = "DDPJOB_NAME"
#: Namespace of the DDPJob.
DDPJOB_NAMESPACE: Final = "DDPJOB_NAMESPACE"
#: uid of the DDPJob object: a deleted and re-applied job has a new one.
DDPJOB_UID: Final = "DDPJOB_UID"
#: Attempt that this process belongs to, counted from 1.
DDPJOB_ATTEMPT: Final = "DDPJOB_ATTEMPT"
#: GPUs for CUDA that this pod asked for; unset where it asked for none.
DDPJOB_GPUS_PER_NODE: Final = "DDPJOB_GPUS_PER_NODE"
#: Name of the node that this pod runs on.
NODE_NAME: Final = "NODE_NAME"
#: Folder for this job's checkpoints, made by the program; unset or empty means that none are kept.
DDPJOB_CHECKPOINT_DIR: Final = "DDPJOB_CHECKPOINT_DIR"
#: Prefix in an object store for this job's checkpoints, such as s3://bucket/runs/default/resnet, instead of the folder.
DDPJOB_CHECKPOINT_URI: Final = "DDPJOB_CHECKPOINT_URI"
#: Folder for decoded data, which later runs on the same data use again; unset or empty means that none are kept.
DDPJOB_CACHE_DIR: Final = "DDPJOB_CACHE_DIR"
#: Folder that holds the training data, read-only.
DDPJOB_DATA_DIR: Final = "DDPJOB_DATA_DIR"
#: How often the launcher starts all ranks again in place before it ends with their exit code; 0 by default.
DDPJOB_IN_PLACE_RESTARTS: Final = "DDPJOB_IN_PLACE_RESTARTS"
#: Exit codes, separated by commas, after which the launcher starts no rank again: the operator has rules for them.
DDPJOB_FINAL_EXIT_CODES: Final = "DDPJOB_FINAL_EXIT_CODES"
#: How long ranks wait within their pods for a pod of the same attempt that is replaced, in seconds. Unset: no pod is replaced.
DDPJOB_REPLACEMENT_SECONDS: Final = "DDPJOB_REPLACEMENT_SECONDS"
#: Of each node rank whose pod has been replaced in this attempt, itself included, how often: "0:1,3:2". Unset in a first pod.
DDPJOB_REPLACEMENTS: Final = "DDPJOB_REPLACEMENTS"
#: Generation of this rank, from 1; set for ranks only, and only where the launcher can start them again in place.
DDPJOB_GENERATION: Final = "DDPJOB_GENERATION"
#: "0" keeps ranks from copying their state into memory when they are to start again in place.
DDPJOB_STATE_IN_MEMORY: Final = "DDPJOB_STATE_IN_MEMORY"
#: How the first rank of this pod that failed ended, where ranks start again in place; empty where the cause is in another pod.
DDPJOB_IN_PLACE_CAUSE: Final = "DDPJOB_IN_PLACE_CAUSE"
#: The file descriptors that such a rank inherits (`ddpjob_ranks.generation`).
DDPJOB_INHERITED: Final = "DDPJOB_INHERITED"
#: Existing file for the termination message where it is not TERMINATION_LOG_PATH (outside a cluster).
DDPJOB_TERMINATION_LOG: Final = "DDPJOB_TERMINATION_LOG"
#: Folder for each rank's spans and rank 0's evidence file, made by the program; unset or empty means that none are kept.
DDPJOB_EVENTS_DIR: Final = "DDPJOB_EVENTS_DIR"

#: "1" makes Python write its output at once.
PYTHONUNBUFFERED: Final = "PYTHONUNBUFFERED"
#: Writable home folder: an unknown uid has no passwd entry, and the root file system is read-only.
HOME: Final = "HOME"
#: User name for getpass.getuser(), which fails without it where the uid has no passwd entry.
USER: Final = "USER"
#: Writable cache folder of torch.compile, whose default calls getpass.getuser().
TORCHINDUCTOR_CACHE_DIR: Final = "TORCHINDUCTOR_CACHE_DIR"
#: Writable cache folder of Triton, whose default is below HOME.
TRITON_CACHE_DIR: Final = "TRITON_CACHE_DIR"
#: Writable folder for temporary files.
TMPDIR: Final = "TMPDIR"

#: Port of the process group unless the job says otherwise (torchrun's static rendezvous uses the same).
DEFAULT_MASTER_PORT: Final = 29500
#: Where the data volume is mounted.
DATA_DIR: Final = "/data"
#: Where the checkpoint volume is mounted; a job's own folder is <namespace>/<job> below it.
CHECKPOINT_DIR: Final = "/checkpoints"
#: Where the cache volume is mounted.
CACHE_DIR: Final = "/cache"

# --- Exit codes ------------------------------------------------------------------------------------------------------

EXIT_SUCCESS: Final = 0
EXIT_PROGRAM_ERROR: Final = 1
EXIT_BAD_CONFIG: Final = 2
EXIT_PEER_LOST: Final = 69
EXIT_HUNG: Final = 70
EXIT_OUT_OF_MEMORY: Final = 71
EXIT_CHECKPOINTED: Final = 75
EXIT_FENCED: Final = 77
EXIT_TERMINATED: Final = 143

#: Every exit code of the trainer's own and what it means. Those from 69 to 77 are taken from sysexits.h
#: (EX_UNAVAILABLE, EX_SOFTWARE, EX_OSERR, EX_TEMPFAIL, EX_NOPERM); 143 is the shell's 128 + SIGTERM. A process killed by signal n is seen as 128 + n.
EXIT_CODES: Final[Mapping[int, str]] = MappingProxyType(
    {
        EXIT_SUCCESS: "training is complete",
        EXIT_PROGRAM_ERROR: "the program raised an exception",
        EXIT_BAD_CONFIG: "the configuration, the environment or the data is wrong; another attempt would fail in the same way",
        EXIT_PEER_LOST: "a collective failed because another rank went away, or a lost pod was not replaced in time; the cause is on that rank",
        EXIT_HUNG: "no rank made progress for longer than stepTimeoutSeconds; the message names the rank that is late",
        EXIT_OUT_OF_MEMORY: "memory of the GPU or of the host ran out",
        EXIT_CHECKPOINTED: "stopped on request with a checkpoint saved; the next attempt continues from it",
        EXIT_FENCED: "a newer attempt owns the checkpoint folder, or another pod has replaced this one",
        EXIT_TERMINATED: "stopped on request with nothing saved",
    }
)

# --- Progress line ---------------------------------------------------------------------------------------------------

#: A line of global rank 0 that starts with this holds one JSON object with the PROGRESS_* fields.
PROGRESS_PREFIX: Final = "ddpjob-progress "
#: Longest progress line, in bytes of UTF-8, prefix included, newline not.
PROGRESS_MAX_BYTES: Final = 1024
#: Longest silence between two progress lines of a living rank 0.
PROGRESS_INTERVAL_SECONDS: Final = 10.0

#: Optimizer steps done since step 0 of the first attempt (int).
PROGRESS_STEP: Final = "step"
#: Optimizer steps of the whole training (int).
PROGRESS_TOTAL_STEPS: Final = "totalSteps"
#: Epoch in work, counted from 0 (int).
PROGRESS_EPOCH: Final = "epoch"
#: Training loss, the latest known (number; left out until there is one, and where it is not finite).
PROGRESS_LOSS: Final = "loss"
#: Training samples a second over all ranks (number; left out until measured).
PROGRESS_SAMPLES_PER_SECOND: Final = "samplesPerSecond"
#: Estimated seconds to the end of training (number; left out until measured).
PROGRESS_ETA_SECONDS: Final = "etaSeconds"
#: Step of the newest complete checkpoint (int; left out while there is none).
PROGRESS_CHECKPOINT_STEP: Final = "checkpointStep"
#: How often all ranks of this attempt have started again in place (int; left out while they have not).
PROGRESS_IN_PLACE_RESTARTS: Final = "inPlaceRestarts"
#: Why they last did so, and at which step (string; left out while they have not).
PROGRESS_IN_PLACE_CAUSE: Final = "inPlaceCause"
#: Replacements of pods in this attempt whose ranks are here: the sum over all pods (int; left out where it is 0).
PROGRESS_JOINED_REPLACEMENTS: Final = "joinedReplacements"
#: Signs of life within a phase without steps, such as an evaluation: any change shows progress (int; left out where it is 0).
PROGRESS_ALIVE: Final = "alive"
#: What rank 0 is doing: one of the PHASE_ values (string; optional).
PROGRESS_PHASE: Final = "phase"
#: Further values by name, the latest known of each (object of at most MAX_METRICS finite numbers; optional).
PROGRESS_METRICS: Final = "metrics"
#: One of them as text for a column of a table, such as "accuracy 99.72 %" (string; optional, the first metric by default).
PROGRESS_HEADLINE: Final = "headline"

#: With at most this number of metrics and such names, a line with every field is shorter than PROGRESS_MAX_BYTES.
MAX_METRICS: Final = 16
#: The whole name of a metric.
METRIC_NAME_PATTERN: Final = r"[A-Za-z][A-Za-z0-9_./-]{0,23}"
#: The whole headline. Printable ASCII, since terminals show it.
HEADLINE_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9 _./:%+-]{0,39}"
#: The whole cause of a restart in place.
IN_PLACE_CAUSE_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9 _./:,+-]{0,79}"

PHASE_START: Final = "start"
PHASE_TRAIN: Final = "train"
PHASE_EVALUATE: Final = "evaluate"
PHASE_CHECKPOINT: Final = "checkpoint"
PHASE_DONE: Final = "done"
#: These print nothing new for longer than steps do, and may take this many times as long.
SLOW_PHASES: Final = frozenset({PHASE_EVALUATE, PHASE_CHECKPOINT})
SLOW_PHASE_FACTOR: Final = 3

# --- Termination message ---------------------------------------------------------------------------------------------

#: The file that kubelet mounts for a container's termination message (terminationMessagePath). Open and write it only: it is a
#: mount of its own, which can be neither replaced nor removed.
TERMINATION_LOG_PATH: Final = "/dev/termination-log"
#: Longest termination message, in bytes of UTF-8; kubelet keeps the last 4096 of the file.
TERMINATION_MESSAGE_MAX_BYTES: Final = 1024
#: Rank 0 that exits with EXIT_CHECKPOINTED writes this and the step of its checkpoint: "checkpointStep=1200".
TERMINATION_CHECKPOINT_PREFIX: Final = "checkpointStep="
#: The first line of a failed rank's message is "rank 3"; with this suffix, the cause is on another rank.
TERMINATION_ECHO_SUFFIX: Final = " lost a peer"

# --- Output --------------------------------------------------------------------------------------------------------

#: The line of a rank that is asked to stop. The stacks of its threads follow, since it may hang.
STACKS_AT_STOP: Final = "ddpjob stacks: SIGTERM received"

# --- Inspection ------------------------------------------------------------------------------------------------------

#: `python -m` with this module in a pod, and "stacks" or "state", prints a RankAnswer as JSON for each rank of the pod.
INSPECTION_MODULE: Final = "ddpjob_ranks.inspection"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAnswer:
    """What a rank answers: either `answer` or `error` has a text."""

    rank: int
    answer: str = ""
    """The stacks of all threads as text, or a RankState as JSON."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """Where a rank is, and where its time went since its first step, up to its last log line."""

    rank: int
    step: int
    """Steps done."""
    phase: str
    seconds_in_phase: float
    num_samples: int
    """Samples of all ranks since the first step of this process."""
    memory_bytes: int
    """Memory of this process on the host."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase; `exposed` is communication that no computation hides, and a part of `backward`."""
    has_communication: bool = False
    """Whether communication was measured."""
    gpu_memory_bytes: int | None = None
    """Memory of its GPU that torch has reserved for this rank; None where it uses none."""
    gpu_memory_total_bytes: int | None = None
    """Memory that this GPU has."""
