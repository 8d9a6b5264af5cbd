"""How the pods of a job get their nodes: queue, priority, topology and gang. Part of the spec."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from ddpjob_operator.api.resource import Resource, Rule


class TopologyMode(StrEnum):
    """How strictly the pods of a job have to be near each other."""

    REQUIRED = "required"
    PREFERRED = "preferred"


class Topology(Resource):
    """The part of the cluster in which all pods of the job should be, such as a rack."""

    key: str = Field(
        min_length=1,
        max_length=317,
        pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
        description="Label of nodes that is equal for nodes next to each other, for example topology.kubernetes.io/rack.",
    )
    mode: TopologyMode = Field(
        default=TopologyMode.PREFERRED,
        description="required: the job waits until one value of the label has nodes for all pods. preferred: the pods are near"
        " each other where possible.",
    )


class GangMode(StrEnum):
    """Whether the pods of a job are scheduled together."""

    AUTO = "auto"
    NONE = "none"


class Scheduling(Resource):
    """How the pods get their nodes. What schedules them together is a setting of the operator."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!(has(self.queueName) && has(self.gang) && self.gang == 'none')",
            "a queue admits the pods of a job together: remove queueName, or set gang to auto",
        ),
    )

    queue_name: str | None = Field(
        default=None,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        description="Queue in which the job waits: a LocalQueue of Kueue in the job's namespace, or a Queue of Volcano.",
    )
    priority_class_name: str | None = Field(
        default=None,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        description="PriorityClass of every pod.",
    )
    topology: Topology | None = Field(default=None, description="Place the pods near each other.")
    shared_claims: list[Annotated[str, Field(min_length=1, max_length=63)]] = Field(
        default_factory=list,
        max_length=4,
        description="Names of template.spec.resourceClaims of which the pods of an attempt share one claim, in place of one for each"
        " pod. Only with Kubernetes' own gang scheduling (1.37).",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    gang: GangMode = Field(
        default=GangMode.AUTO,
        description="auto: the pods are scheduled together where the operator has a scheduling provider. none: one by one.",
    )
