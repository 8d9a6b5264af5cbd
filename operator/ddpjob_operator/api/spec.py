"""What a user asks for: `spec` of a DDPJob. The one source of the CRD, the README's table and the defaults.

Rules that join fields are CEL (`rules`), so that the API server refuses a bad job at apply and nobody needs a webhook.
They (`cel_rules`) are written beside the model they guard; `api/crd.py` puts them into the schema.
"""

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ddpjob_operator.api.names import MAIN_CONTAINER, MAX_NODES, RESERVED_PREFIX, RESERVED_VARIABLES, contract
from ddpjob_operator.api.resource import Opaque, OpenResource, Resource, Rule
from ddpjob_trainer.config import TrainerConfig

_RESERVED = "[" + ", ".join(f"'{name}'" for name in RESERVED_VARIABLES) + "]"

_Argument = Annotated[str, Field(max_length=8192)]
_Quantity = Annotated[int | str, Field(json_schema_extra={"x-kubernetes-int-or-string": True})]
_Quantities = Annotated[dict[str, _Quantity], Field(max_length=32)]
#: A list whose items the API server tells apart by name: no name twice.
_UNIQUE_NAMES: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
_ExitCode = Annotated[int, Field(ge=1, le=255)]


class EnvVar(Resource):
    """One environment variable of every rank."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!(self.name in {_RESERVED})",
            "this variable is set by the operator for every rank and cannot be overridden: choose another name",
        ),
        Rule("!(has(self.value) && has(self.valueFrom))", "set either value or valueFrom, not both"),
    )

    name: str = Field(min_length=1, max_length=256, description="Name of the variable.")
    value: str | None = Field(default=None, max_length=32768, description="Its value.")
    value_from: Opaque | None = Field(default=None, description="Where the value comes from, as in a pod.")


class Resources(Resource):
    """Requests and limits of each pod's main container. GPUs are added from `gpusPerNode`."""

    requests: _Quantities | None = Field(default=None, description="As in a pod.")
    limits: _Quantities | None = Field(default=None, description="As in a pod.")


_Volume = Annotated[Opaque, Field(min_length=1)]


class Data(Resource):
    """Where the training data lies."""

    volume: _Volume = Field(description=f"Any pod VolumeSource, mounted read-only at {contract.DATA_DIR}.")


class Checkpoint(Resource):
    """Where checkpoints are kept. Without it a restart begins at step 0."""

    volume: _Volume = Field(description=f"Any pod VolumeSource, mounted at {contract.CHECKPOINT_DIR}.")
    every_steps: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        description="Steps between two checkpoints of the built-in trainer, beside the one at each epoch's end.",
    )


class RestartAction(StrEnum):
    """What a restart rule does; `Ignore` has batch/v1's meaning."""

    FAIL = "Fail"
    RESTART = "Restart"
    IGNORE = "Ignore"


class RestartRule(Resource):
    """What to do when a rank's main process ends with one of these exit codes."""

    exit_codes: list[_ExitCode] = Field(
        min_length=1,
        max_length=64,
        description="Exit codes that the rule is for, 1 to 255.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    action: RestartAction = Field(
        description="Fail ends the job. Restart restarts the gang and counts. Ignore restarts and does not count."
    )


class Restart(Resource):
    """How often the gang is started again after a failure."""

    max_restarts: int = Field(
        default=3, ge=0, le=1000, description="Counted restarts within the window before the job fails."
    )
    window_seconds: int = Field(
        default=3600, ge=60, le=31_536_000, description="Length of the sliding window in which restarts count."
    )
    keep_attempts: int = Field(
        default=2, ge=0, le=20, description="Past attempts whose failed pods are kept, with their logs."
    )
    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.rules) || self.rules.all(r, r.exitCodes.all(c, self.rules.exists_one(q, c in q.exitCodes)))",
            "an exit code stands in two rules, and the second would never match: remove it from one",
        ),
    )

    rules: list[RestartRule] = Field(default=[], max_length=20, description="Rules by exit code; the first match wins.")


class SecurityProfile(StrEnum):
    """What a pod may do, named for the levels of the Pod Security Standards."""

    RESTRICTED = "restricted"
    BASELINE = "baseline"


class Deadlines(Resource):
    """Limits on waiting. Each has a clock of its own; none runs while the job is suspended."""

    queue_seconds: int | None = Field(
        default=None, ge=1, le=31_536_000, description="Longest wait for a place on nodes. No limit unless set."
    )
    start_seconds: int = Field(
        default=600, ge=1, le=31_536_000, description="Longest time from all pods scheduled to all running."
    )
    hang_seconds: int = Field(
        default=900,
        ge=1,
        le=31_536_000,
        description="Longest time without progress, once a progress line was printed (the built-in trainer: also without"
        " one, startSeconds longer); three times as long while rank 0 says that it evaluates or writes a checkpoint.",
    )
    finish_seconds: int = Field(
        default=3600, ge=1, le=31_536_000, description="Longest time from the first rank's success to the last one's."
    )
    active_seconds: int | None = Field(
        default=None,
        ge=1,
        le=315_360_000,
        description="Longest time neither queued nor suspended, over all attempts. No limit unless set.",
    )


class TemplateEnvVar(OpenResource):
    """A variable of the overlay's containers."""

    name: str = Field(min_length=1, max_length=256, description="Name of the variable.")


class TemplateContainer(OpenResource):
    """A container of the overlay. Declared only as far as rules need; the rest is handed on to the pod."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.env) || self.env.all(e, !(e.name in {_RESERVED}))",
            "env sets a variable that the operator sets for every rank (such as RANK or MASTER_ADDR): choose another name",
        ),
    )
    name: str = Field(min_length=1, max_length=63, description="`trainer` is the container that runs the program.")
    env: Annotated[list[TemplateEnvVar], Field(max_length=128)] | None = Field(
        default=None, description="As in a pod; the names the operator sets are refused."
    )


class TemplatePodSpec(OpenResource):
    """The overlay on the pod's spec: merged over what the operator renders, lists by name, the user wins."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.initContainers) || self.initContainers.all(c, c.name != '{MAIN_CONTAINER}')",
            f"an init container is named {MAIN_CONTAINER}, which is the container that runs the program: rename it",
        ),
    )

    termination_grace_period_seconds: int | None = Field(
        default=None,
        ge=1,
        le=86_400,
        description="Time to save work after SIGTERM; with 0 a pod's object would go while its processes live on.",
    )
    restart_policy: Literal["Never"] | None = Field(
        default=None, description="Never: the operator restarts the gang, the kubelet restarts nothing."
    )
    containers: Annotated[list[TemplateContainer], Field(max_length=16)] | None = Field(
        default=None,
        description="Overlay on the main container (by the name `trainer`), and further containers.",
        json_schema_extra=_UNIQUE_NAMES,
    )
    init_containers: Annotated[list[TemplateContainer], Field(max_length=16)] | None = Field(
        default=None, description="As in a pod.", json_schema_extra=_UNIQUE_NAMES
    )


class TemplateMetadata(Resource):
    """Labels and annotations added to every pod."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.labels) || self.labels.all(k, !k.startsWith('{RESERVED_PREFIX}'))",
            f"labels under {RESERVED_PREFIX} belong to the operator: choose another prefix",
        ),
        Rule(
            f"!has(self.annotations) || self.annotations.all(k, !k.startsWith('{RESERVED_PREFIX}'))",
            f"annotations under {RESERVED_PREFIX} belong to the operator: choose another prefix",
        ),
    )

    labels: Annotated[dict[str, str], Field(max_length=64)] | None = Field(default=None, description="As in a pod.")
    annotations: Annotated[dict[str, str], Field(max_length=64)] | None = Field(
        default=None, description="As in a pod."
    )


class Template(Resource):
    """An overlay on every pod."""

    metadata: TemplateMetadata | None = Field(default=None, description="Labels and annotations.")
    spec: TemplatePodSpec | None = Field(default=None, description="Any part of a pod's spec.")


def _unchanged(field: str) -> str:
    return f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"


_PROCESSES = "(has(self.processesPerNode) ? self.processesPerNode : (self.gpusPerNode > 0 ? self.gpusPerNode : 1))"
_LAUNCHER_MODULES = (
    "['torch.distributed.run', 'torch.distributed.launch', 'accelerate.commands.launch', 'ddpjob_trainer']"
)
#: What defines the shape and the program of a job. Pods are rendered from these fields, and their hash covers them.
SHAPE_FIELDS = (
    "nodes",
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
    "securityProfile",
    "template",
)


class DDPJobSpec(Resource):
    """What to run, on how many nodes, and what to do when something goes wrong."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.trainer) != has(self.command)",
            "set exactly one of trainer (the built-in trainer) and command (your own program)",
        ),
        Rule(
            "self.gpusPerNode == 0 || !has(self.processesPerNode) || self.processesPerNode == self.gpusPerNode",
            "processesPerNode must equal gpusPerNode, since each process has one GPU: leave processesPerNode out or change one of them",
        ),
        Rule(
            "!has(self.command) || self.command[0].size() > 0",
            "command begins with an empty string: its first item is the program to start",
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
            "resources names the GPU resource too: set the number of GPUs in gpusPerNode alone",
        ),
        Rule(
            "!has(self.checkpoint) || !has(self.checkpoint.everySteps) || (has(self.trainer)"
            " && self.trainer.checkpointEverySteps == 0)",
            "checkpoint.everySteps is for the built-in trainer and says the same as trainer.checkpointEverySteps: set one of them",
        ),
        Rule(
            "(self.suspend && oldSelf.suspend) || (" + " && ".join(f"({_unchanged(f)})" for f in SHAPE_FIELDS) + ")",
            "shape and program ("
            + ", ".join(SHAPE_FIELDS)
            + ") can change only while the job is suspended: set suspend to"
            " true first, then edit, then set it to false",
        ),
    )

    nodes: int = Field(default=1, ge=1, le=MAX_NODES, description="Number of pods, one per node.")
    gpus_per_node: int = Field(default=0, ge=0, le=64, description="GPUs of each pod; 0 trains on CPUs.")
    gpu_resource: str = Field(
        default="nvidia.com/gpu",
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        description="Extended resource that stands for a GPU.",
    )
    processes_per_node: int | None = Field(
        default=None, ge=1, le=256, description="Ranks of each pod. Default: gpusPerNode, or 1 on CPUs."
    )
    master_port: int = Field(
        default=contract.DEFAULT_MASTER_PORT,
        ge=1024,
        le=65535,
        description="Port on which rank 0 waits for the others; below 1024 needs root.",
    )
    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        pattern=r"^\S+$",
        description="Image of every pod. Default: the operator's trainer image, kept for the life of the job.",
    )
    trainer: TrainerConfig | None = Field(
        default=None, description="Run the built-in trainer with this configuration; excludes command."
    )
    command: Annotated[list[_Argument], Field(min_length=1, max_length=256)] | None = Field(
        default=None, description="Run this program in every pod, without a shell; excludes trainer."
    )
    env: list[EnvVar] = Field(
        default=[],
        max_length=128,
        description="Further environment variables of every rank.",
        json_schema_extra=_UNIQUE_NAMES,
    )
    resources: Resources | None = Field(default=None, description="Requests and limits of every pod.")
    data: Data | None = Field(default=None, description="Training data.")
    checkpoint: Checkpoint | None = Field(default=None, description="Checkpoints.")
    security_profile: SecurityProfile = Field(
        default=SecurityProfile.RESTRICTED,
        description="What the pods may do, named for the levels of the Pod Security Standards. restricted: user 65532, no"
        " capabilities. baseline: the image's own user, which may be root, and the container runtime's default capabilities.",
    )
    restart: Restart = Field(default=Restart(), description="Restarts of the gang.")
    deadlines: Deadlines = Field(default=Deadlines(), description="Limits on waiting.")
    suspend: bool = Field(
        default=False, description="Stop all pods, with time to save, and start none until this is false again."
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None, ge=0, le=315_360_000, description="Delete the job this long after its end. Never unless set."
    )
    template: Template | None = Field(default=None, description="Overlay on every pod.")

    @property
    def processes(self) -> int:
        """Ranks of each pod, with the default applied."""
        return self.processes_per_node or self.gpus_per_node or 1

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""
        return self.nodes * self.processes

    def shape(self) -> dict[str, Any]:
        """The fields that pods are rendered from, as plain JSON values.

        Defaults are left out: a release that adds a field must not make every running job look edited.
        """
        values = self.model_dump(by_alias=True, mode="json", exclude_unset=True, exclude_defaults=True)
        return {field: values[field] for field in SHAPE_FIELDS if field in values}
