"""The `spec` of a DDPJob: what a user asks for. The CRD, the README's table and the defaults are generated from it.

Rules that concern several fields are CEL expressions (`cel_rules`), so that the API server refuses an invalid job at
apply without a webhook. Each is defined in the model that it validates; `api/crd.py` writes it into the schema.
"""

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import Field

from ddpjob_operator.api import names
from ddpjob_operator.api.deadlines import Deadlines
from ddpjob_operator.api.names import MAX_NODES, contract
from ddpjob_operator.api.resource import Opaque, Resource, Rule
from ddpjob_operator.api.scheduling import Scheduling
from ddpjob_operator.api.template import RESERVED_NAMES, UNIQUE_NAMES, Template
from ddpjob_trainer.config import TrainerConfig

#: What the cost of the rules allows in an expression: 256 arguments of this length. An environment variable may be as long.
_Argument = Annotated[str, Field(max_length=32768)]
_Quantity = Annotated[int | str, Field(json_schema_extra={"x-kubernetes-int-or-string": True})]
_Quantities = Annotated[dict[str, _Quantity], Field(max_length=32)]
_ExitCode = Annotated[int, Field(ge=1, le=255)]


class EnvVar(Resource):
    """One environment variable of every rank."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!(self.name in {RESERVED_NAMES})",
            "the operator sets this variable for every rank, and it cannot be overridden: choose another name, or set the field that it"
            " comes from, such as checkpoint.volume for DDPJOB_CHECKPOINT_DIR",
        ),
        Rule("!(has(self.value) && has(self.valueFrom))", "set either value or valueFrom, not both"),
    )

    name: str = Field(min_length=1, max_length=256, description="Name of the variable.")
    value: str | None = Field(default=None, max_length=32768, description="Value of the variable.")
    value_from: Opaque | None = Field(default=None, description="Source of the value, as in a pod.")


class Resources(Resource):
    """Requests and limits of each pod's main container. The operator adds GPUs from `gpusPerNode`."""

    requests: _Quantities | None = Field(default=None, description="Resource requests, as in a pod.")
    limits: _Quantities | None = Field(default=None, description="Resource limits, as in a pod.")


_Volume = Annotated[Opaque, Field(min_length=1)]


class Data(Resource):
    """The volume with the training data."""

    volume: _Volume = Field(description=f"Any VolumeSource of a pod. It is mounted read-only at {contract.DATA_DIR}.")


class Checkpoint(Resource):
    """Where checkpoints are stored. Without it, training starts again at step 0 after a restart."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.volume) != has(self.uri)",
            "set exactly one of volume (checkpoints are files on a volume) and uri (checkpoints are objects in a store)",
        ),
    )

    volume: _Volume | None = Field(
        default=None,
        description=f"Any VolumeSource of a pod. It is mounted at {contract.CHECKPOINT_DIR} in all pods. Mutually exclusive with uri.",
    )
    uri: str | None = Field(
        default=None,
        max_length=1024,
        pattern=r"^(s3|gs|az)://[^/\s]+(/[^/\s]+)*/?$",
        description="Bucket and prefix in an object store: s3://, gs:// or az://. Checkpoints of the job are stored below"
        " <uri>/<namespace>/<name>. Credentials are environment variables, set in env. Mutually exclusive with volume.",
    )
    every_steps: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        description="Number of steps between two checkpoints of the built-in trainer, which also saves at the end of each epoch.",
    )


class Cache(Resource):
    """A volume for files that save time at the next start: compiled code and decoded data."""

    volume: _Volume = Field(
        description=f"Any VolumeSource of a pod. It is mounted at {contract.CACHE_DIR} in all pods. A hostPath gives each"
        " node a cache of its own; jobs may share a cache."
    )


class RestartAction(StrEnum):
    """What a restart rule does. `Ignore` means the same as in batch/v1."""

    FAIL = "Fail"
    RESTART = "Restart"
    IGNORE = "Ignore"


class RestartRule(Resource):
    """What to do when a rank's main process ends with one of these exit codes."""

    exit_codes: list[_ExitCode] = Field(
        min_length=1,
        max_length=64,
        description="Exit codes that the rule applies to, from 1 to 255.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    action: RestartAction = Field(
        description="Fail ends the job. Restart restarts all pods and counts the restart. Ignore restarts all pods without counting it."
    )


class Restart(Resource):
    """How often the pods are restarted after a failure. All pods are restarted together."""

    max_restarts: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="Number of counted restarts within windowSeconds after which the next failure ends the job.",
    )
    window_seconds: int = Field(
        default=3600, ge=60, le=31_536_000, description="Length of the sliding window in which restarts are counted."
    )
    keep_attempts: int = Field(
        default=2, ge=0, le=20, description="Number of past attempts whose failed pods are kept, with their logs."
    )
    in_place: bool = Field(
        default=False,
        description="Whether the launcher of our image first starts all ranks again within their pods, from the state in memory, and whether a lost pod is replaced while the others wait. Such restarts count, too. With torchrun, its agents start all ranks again within their pods, and the script loads its own checkpoint.",
    )
    state_in_memory: bool = Field(
        default=True,
        description="With inPlace: whether ranks leave a copy of their state in the memory of their pod for the next ranks. On GPUs this takes up to six times the size of the state. Without it they start from the newest checkpoint.",
    )
    spares: int = Field(
        default=0,
        ge=0,
        le=8,
        description="Deprecated: has no effect, since this release has no spare pods.",
    )
    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.rules) || self.rules.all(r, r.exitCodes.all(c, self.rules.exists_one(q, c in q.exitCodes)))",
            "an exit code is listed in two rules, and the second would never match: remove it from one of them",
        ),
    )

    rules: list[RestartRule] = Field(
        default=[], max_length=20, description="What to do for certain exit codes. The first rule that matches applies."
    )


class SecurityProfile(StrEnum):
    """What a pod may do, named for the levels of the Pod Security Standards."""

    RESTRICTED = "restricted"
    BASELINE = "baseline"


def _unchanged(field: str) -> str:
    return f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"


_PROCESSES = "(has(self.processesPerNode) ? self.processesPerNode : (self.gpusPerNode > 0 ? self.gpusPerNode : 1))"
_LAUNCHER_MODULES = "['torch.distributed.run', 'torch.distributed.launch', 'accelerate.commands.launch', 'ddpjob.launch', 'ddpjob_trainer']"
#: The fields that pods are rendered from and that cannot change while the job runs.
FIXED_FIELDS = (
    "gpusPerNode",
    "gpuResource",
    "processesPerNode",
    "masterPort",
    "image",
    "trainer",
    "command",
    "env",
    "resources",
    "data",
    "checkpoint",
    "cache",
    "securityProfile",
    "scheduling",
    "template",
)
#: The fields that pods are rendered from. The hash on each pod covers them.
SHAPE_FIELDS = ("nodes", *FIXED_FIELDS)


class DDPJobSpec(Resource):
    """What to run, on how many nodes, and how to handle failures."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.trainer) != has(self.command)",
            "set exactly one of trainer (runs the built-in trainer) and command (runs your own program)",
        ),
        Rule(
            "self.gpusPerNode == 0 || !has(self.processesPerNode) || self.processesPerNode == self.gpusPerNode",
            "processesPerNode must equal gpusPerNode, because each process uses one GPU: omit processesPerNode or change one of them",
        ),
        Rule(
            "!has(self.command) || self.command[0].size() > 0",
            "the first item of command is empty: it must be the program to start",
        ),
        Rule(
            f"!has(self.command) || {_PROCESSES} == 1 || !self.command[0].matches('^(.*/)?python[0-9.]*t?$')"
            f" || ('-m' in self.command && self.command.exists(a, a in {_LAUNCHER_MODULES}))",
            "command starts one python process but each node has several ranks: start a launcher instead, for example"
            " [torchrun, train.py], or set processesPerNode (and gpusPerNode) to 1",
        ),
        Rule(
            "!has(self.resources) || ((!has(self.resources.limits) || !(self.gpuResource in self.resources.limits))"
            " && (!has(self.resources.requests) || !(self.gpuResource in self.resources.requests)))",
            "resources must not list the GPU resource: set the number of GPUs in gpusPerNode only",
        ),
        Rule(
            "self.gpusPerNode <= 1 || !(self.gpuResource.contains('/mig-') || self.gpuResource.endsWith('.shared'))",
            "gpuResource is a part of a GPU (a MIG slice or a time-sliced GPU), of which each pod can use one only: set gpusPerNode to 1"
            " and raise nodes",
        ),
        Rule(
            "self.gpusPerNode > 0 || has(self.processesPerNode) || !has(self.template) || !has(self.template.spec)"
            " || !has(self.template.spec.resourceClaims)",
            "template.spec.resourceClaims gives each pod devices whose number only the driver knows: set processesPerNode to the number"
            " of processes of each pod, which is one for each GPU",
            for_new_jobs=True,
        ),
        Rule(
            "!has(self.checkpoint) || !has(self.checkpoint.everySteps) || (has(self.trainer)"
            " && self.trainer.checkpointEverySteps == 0)",
            "checkpoint.everySteps applies to the built-in trainer only and means the same as trainer.checkpointEverySteps: set one of them",
        ),
        Rule(
            "(self.suspend && oldSelf.suspend) || (" + " && ".join(f"({_unchanged(f)})" for f in FIXED_FIELDS) + ")",
            "the fields that pods are created from ("
            + ", ".join(FIXED_FIELDS)
            + ") can change only while the job is suspended: set suspend to"
            " true, then edit the job, then set suspend to false",
        ),
        Rule(
            "(self.suspend && oldSelf.suspend) || self.nodes == oldSelf.nodes || !has(self.trainer)"
            " || self.trainer.perProcessBatchSize == 0",
            "with trainer.perProcessBatchSize the global batch size depends on nodes, and no checkpoint can be resumed with another"
            " one: nodes cannot change; use a new job with globalBatchSize instead",
        ),
        Rule(
            "!has(self.minNodes) || self.minNodes <= self.nodes",
            "nodes is less than minNodes: raise nodes, or lower or remove minNodes",
        ),
        Rule(
            "!has(self.minNodes) || self.minNodes == self.nodes || !has(self.trainer) || self.trainer.perProcessBatchSize == 0",
            "with trainer.perProcessBatchSize the global batch size depends on the number of nodes, and no checkpoint can be resumed"
            " with another one: set globalBatchSize instead, or remove minNodes",
        ),
        Rule(_unchanged("managedBy"), "managedBy cannot change: create another job"),
    )

    nodes: int = Field(
        default=1,
        ge=1,
        le=MAX_NODES,
        description="Number of nodes. Each node runs one pod of the job. It can change while the job runs, for example by `kubectl"
        " scale`: the pods stop and may save their work, and the next attempt continues with the new number.",
    )
    min_nodes: int | None = Field(
        default=None,
        ge=1,
        le=MAX_NODES,
        description="Least number of nodes on which the job runs if it does not get all `nodes` within deadlines.fullSizeSeconds. Each"
        " attempt begins with all `nodes`. By default the job runs on all `nodes` or not at all. With a gang scheduler it is the least"
        " number of pods that get nodes together. It has no effect with Kueue, which admits all pods or none. It can change at any time.",
    )
    gpus_per_node: int = Field(
        default=0, ge=0, le=64, description="Number of GPUs of each pod. With 0 the job trains on CPUs."
    )
    gpu_resource: str = Field(
        default="nvidia.com/gpu",
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        description="Name of the extended resource that is requested for GPUs.",
    )
    processes_per_node: int | None = Field(
        default=None, ge=1, le=256, description="Number of ranks of each pod. Defaults to gpusPerNode, or to 1 on CPUs."
    )
    master_port: int = Field(
        default=contract.DEFAULT_MASTER_PORT,
        ge=1024,
        le=65535,
        description="Port on which rank 0 accepts the connections of the other ranks. With `hostNetwork` in the template, the default"
        " means a port from 20000 to 29999 that differs for each job and attempt.",
    )
    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        pattern=r"^\S+$",
        description="Image of every pod. Defaults to the trainer image of the operator, which does not change during the job.",
    )
    trainer: TrainerConfig | None = Field(
        default=None, description="Runs the built-in trainer with this configuration. Mutually exclusive with command."
    )
    command: Annotated[list[_Argument], Field(min_length=1, max_length=256)] | None = Field(
        default=None, description="Runs this program in every pod, without a shell. Mutually exclusive with trainer."
    )
    env: list[EnvVar] = Field(
        default=[],
        max_length=128,
        description="Additional environment variables of every rank.",
        json_schema_extra=UNIQUE_NAMES,
    )
    resources: Resources | None = Field(default=None, description="Resource requests and limits of every pod.")
    data: Data | None = Field(default=None, description="Volume with the training data.")
    checkpoint: Checkpoint | None = Field(
        default=None,
        description="Volume or object store for checkpoints. Without it, training starts again at step 0 after a restart.",
    )
    cache: Cache | None = Field(
        default=None,
        description="Volume for compiled code and decoded data. With it, a restart neither compiles nor decodes again.",
    )
    security_profile: SecurityProfile = Field(
        default=SecurityProfile.RESTRICTED,
        description="Level of the Pod Security Standards that the pods comply with. restricted: the containers run as user 65532"
        " without capabilities. baseline: they run as the image's user, which may be root, with the default capabilities of"
        " the container runtime.",
    )
    scheduling: Scheduling = Field(default=Scheduling(), description="How the pods get their nodes.")
    network_policy: bool = Field(
        default=True,
        description="Whether the operator creates a NetworkPolicy that lets only pods of this job connect to its pods. It can change at"
        " any time. It has no effect on pods with hostNetwork, if the operator creates no NetworkPolicies, or if the network of the"
        " cluster does not enforce them.",
    )
    restart: Restart = Field(
        default=Restart(),
        description="Restarts after failures. All pods are restarted together, unless inPlace is set.",
    )
    deadlines: Deadlines = Field(default=Deadlines(), description="Time limits of the job.")
    suspend: bool = Field(
        default=False,
        description="Stops all pods. They can save their work in their grace period. The job continues when this is false again.",
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None,
        ge=0,
        le=315_360_000,
        description="Deletes the job this many seconds after its end. Not deleted by default.",
    )
    managed_by: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description=f"The controller that runs the job, {names.CONTROLLER} by default. The operator ignores a job that names another"
        " controller, for example kueue.x-k8s.io/multikueue. It cannot change.",
    )
    template: Template | None = Field(
        default=None, description="Settings that are merged into every pod; they take precedence over the operator's."
    )

    @property
    def processes(self) -> int:
        """Number of ranks of each pod, with the default applied."""
        return self.processes_per_node or self.gpus_per_node or 1

    @property
    def world_size(self) -> int:
        """Number of ranks of the whole job."""
        return self.nodes * self.processes

    @property
    def least_nodes(self) -> int:
        """Number of nodes without which an attempt of this size does not run."""
        return min(self.min_nodes or self.nodes, self.nodes)

    def shape(self) -> dict[str, Any]:
        """The fields that pods are rendered from, as JSON values.

        Defaults are omitted, so that running jobs do not look edited to a release that adds a field.
        """
        values = self.model_dump(by_alias=True, mode="json", exclude_unset=True, exclude_defaults=True)
        return {field: values[field] for field in SHAPE_FIELDS if field in values}
