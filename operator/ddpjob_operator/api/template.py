"""`spec.template`: what a user adds to every pod. Only what rules refer to is declared; all else is passed on unchanged."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ddpjob_operator.api.names import MAIN_CONTAINER, RESERVED_PREFIX, RESERVED_VARIABLES
from ddpjob_operator.api.resource import Opaque, OpenResource, Resource, Rule

#: The variables that the operator sets, as a list in CEL.
RESERVED_NAMES = "[" + ", ".join(f"'{name}'" for name in RESERVED_VARIABLES) + "]"
#: The schema of a list of items with unique names; the API server enforces it.
UNIQUE_NAMES: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}


class TemplateEnvVar(OpenResource):
    """An environment variable of a container of the template."""

    name: str = Field(min_length=1, max_length=256, description="Name of the variable.")


class RestartPolicyRule(OpenResource):
    """A rule by which the kubelet restarts a container, as in a pod."""


class TemplateContainer(OpenResource):
    """A container of the template. Only fields that rules refer to are declared; all others are passed to the pod."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.env) || self.env.all(e, !(e.name in {RESERVED_NAMES}))",
            "env sets a variable that the operator sets for every rank (such as RANK or MASTER_ADDR): choose another name",
        ),
    )
    name: str = Field(
        min_length=1,
        max_length=63,
        description="Name of the container. `trainer` is the container that runs the program.",
    )
    image: str | None = Field(
        default=None,
        description="Image of the container, as in a pod. The container `trainer` has spec.image; all others need one.",
    )
    env: Annotated[list[TemplateEnvVar], Field(max_length=128)] | None = Field(
        default=None, description="Environment variables, as in a pod. Variables that the operator sets are refused."
    )
    restart_policy: str | None = Field(
        default=None,
        description="As in a pod; refused for the container `trainer`, because the operator restarts all ranks together.",
    )
    restart_policy_rules: Annotated[list[RestartPolicyRule], Field(max_length=20)] | None = Field(
        default=None, description="As in a pod; refused for the container `trainer`."
    )
    liveness_probe: Opaque | None = Field(
        default=None,
        description="As in a pod; refused for the container `trainer`, because the kubelet would end a rank that is slow to answer,"
        " and one that answers SIGTERM with exit code 0 would count as successful. deadlines.hangSeconds finds ranks that hang.",
    )


class TemplatePodSpec(OpenResource):
    """The part of the template that is merged into the pod's spec. Lists merge by name, and the template takes precedence."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.initContainers) || self.initContainers.all(c, c.name != '{MAIN_CONTAINER}')",
            f"an init container is named {MAIN_CONTAINER}, which is the name of the container that runs the program: rename it",
        ),
        Rule(
            f"!has(self.containers) || self.containers.all(c, c.name != '{MAIN_CONTAINER}' || !has(c.livenessProbe))",
            f"the container {MAIN_CONTAINER} has a livenessProbe: remove it, because the kubelet would end a rank that may only be slow;"
            " deadlines.hangSeconds ends ranks without progress",
            for_new_jobs=True,
        ),
        Rule(
            "!has(self.containers) || self.containers.all(c,"
            f" c.name != '{MAIN_CONTAINER}' || !(has(c.restartPolicy) || has(c.restartPolicyRules)))",
            f"the container {MAIN_CONTAINER} has a restartPolicy or restartPolicyRules of its own: remove them, because a rank that the"
            " kubelet restarts alone cannot join the others; spec.restart restarts all ranks together",
            for_new_jobs=True,
        ),
        Rule(
            f"!has(self.containers) || self.containers.all(c, c.name == '{MAIN_CONTAINER}' || (has(c.image) && c.image != ''))",
            f"a container has no image: if it is the one that runs the program, its name must be {MAIN_CONTAINER}; any other container"
            " needs an image of its own",
            for_new_jobs=True,
        ),
        Rule(
            "!has(self.initContainers) || self.initContainers.all(c, has(c.image) && c.image != '')",
            f"an init container has no image: give it one; settings of the container that runs the program belong to {MAIN_CONTAINER} in"
            " containers",
            for_new_jobs=True,
        ),
    )

    termination_grace_period_seconds: int | None = Field(
        default=None,
        ge=1,
        le=86_400,
        description="Seconds between SIGTERM and SIGKILL, in which programs can save their work. 0 is refused, because the pod's"
        " object would then be deleted while its processes still run.",
    )
    restart_policy: Literal["Never"] | None = Field(
        default=None, description="Only Never is allowed, because the operator restarts all pods together."
    )
    containers: Annotated[list[TemplateContainer], Field(max_length=16)] | None = Field(
        default=None,
        description="Settings of the main container, which has the name `trainer`, and additional containers.",
        json_schema_extra=UNIQUE_NAMES,
    )
    init_containers: Annotated[list[TemplateContainer], Field(max_length=16)] | None = Field(
        default=None, description="Init containers, as in a pod.", json_schema_extra=UNIQUE_NAMES
    )
    resource_claims: Annotated[list[Opaque], Field(max_length=64)] | None = Field(
        default=None,
        description="Claims of devices (Dynamic Resource Allocation), as in a pod. Without gpusPerNode they need processesPerNode.",
    )


class TemplateMetadata(Resource):
    """Labels and annotations that are added to every pod."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.labels) || self.labels.all(k, !k.startsWith('{RESERVED_PREFIX}'))",
            f"labels with the prefix {RESERVED_PREFIX} are reserved for the operator: choose another prefix",
        ),
        Rule(
            f"!has(self.annotations) || self.annotations.all(k, !k.startsWith('{RESERVED_PREFIX}'))",
            f"annotations with the prefix {RESERVED_PREFIX} are reserved for the operator: choose another prefix",
        ),
    )

    labels: Annotated[dict[str, str], Field(max_length=64)] | None = Field(
        default=None, description="Labels that are added to every pod."
    )
    annotations: Annotated[dict[str, str], Field(max_length=64)] | None = Field(
        default=None, description="Annotations that are added to every pod."
    )


class Template(Resource):
    """Settings that are merged into every pod."""

    metadata: TemplateMetadata | None = Field(
        default=None, description="Labels and annotations that are added to every pod."
    )
    spec: TemplatePodSpec | None = Field(default=None, description="Any part of a PodSpec.")
