"""The `status` of a DDPJob, as the operator writes it.

The status is also the operator's memory: `plan` reads all clocks and counters from it and from pods, never from the
process. Times are RFC 3339 in UTC with whole seconds. Phases and reasons are plain strings here, so that an operator can
read a status that a newer release wrote; `names.py` defines their values.
"""

from bisect import bisect_left
from collections.abc import Mapping
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from ddpjob_operator.api.names import MAX_NODES, ConditionType, contract
from ddpjob_operator.api.resource import Resource, Rule


def _existing(time: str) -> str:
    """A time that exists, which the pattern alone does not say of the 31st of June. Raises ValueError otherwise."""
    datetime.fromisoformat(time)
    return time


# Whoever may write the status of a job can write anything that the schema admits, and decisions count up to these numbers.
Time = Annotated[
    str,
    Field(
        pattern=r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z$",
        json_schema_extra={"format": "date-time"},
    ),
    AfterValidator(_existing),
]
Times = Annotated[list[Time], Field(max_length=10_000)]
#: Four times what `untrusted.printable` leaves of a text. The operator's own sentences are cut to it where they quote several.
MAX_TEXT_LENGTH = 4096
Text = Annotated[str, Field(max_length=MAX_TEXT_LENGTH)]
#: The largest is what every JSON reader holds exactly.
Count = Annotated[int, Field(ge=0, le=2**53)]
NumNodes = Annotated[int, Field(ge=1, le=MAX_NODES)]
NodeRank = Annotated[int, Field(ge=0, le=MAX_NODES - 1)]
AttemptNumber = Annotated[int, Field(ge=1, le=2**31 - 1)]


class Condition(Resource):
    """A condition with the meaning that conditions have in the Kubernetes API."""

    type: Text = Field(description="Type of the condition.")
    status: Literal["True", "False", "Unknown"] = Field(
        description="Whether the condition holds. The operator writes True or False."
    )
    reason: Text = Field(description="Reason of the last transition, in CamelCase.")
    message: Text = Field(default="", description="Explanation of the reason in one sentence.")
    last_transition_time: Time = Field(description="Time at which the condition's status last changed.")
    observed_generation: Count = Field(default=0, description="metadata.generation for which the condition was set.")


class Restarts(Resource):
    """Restarts of the job so far."""

    counted: Count = Field(
        default=0, description="Restarts over the job's lifetime that count against restart.maxRestarts."
    )
    infrastructure: Count = Field(
        default=0,
        description="Restarts that do not count, because the cluster caused them: lost nodes, evictions and preemptions.",
    )
    counted_times: Times = Field(default=[], description="Times of the counted restarts within the current window.")
    infrastructure_times: Times = Field(
        default=[],
        description="Times of the restarts that do not count, within the last day and since an attempt last made progress.",
    )
    pod_replacements: Count = Field(
        default=0,
        description="Restarts, among those above, in which lost pods were replaced while the other pods of their attempt continued.",
    )
    in_place_counted: Count = Field(
        default=0,
        description="Restarts in place in the current attempt that are included in counted, or in which a pod was replaced.",
    )
    in_a_row: Count = Field(
        default=0,
        description="Consecutive failures without a healthy attempt between them. The back-off delay grows with them.",
    )
    short_in_a_row: Count = Field(
        default=0,
        description="Consecutive attempts that ended within 10 seconds of running. The back-off delay grows with them, too.",
    )
    furthest_step: Count = Field(default=0, description="Highest step that rank 0 of an earlier attempt reported.")
    furthest_checkpoint_step: Count = Field(
        default=0, description="Step of the newest checkpoint that an earlier attempt reported."
    )


class TimeSpent(Resource):
    """How the job spent its time, excluding suspension. Training that a failure discarded counts as lost."""

    queued_seconds: Count = Field(default=0, description="Seconds in which the job waited for nodes.")
    starting_seconds: Count = Field(
        default=0, description="Seconds in which all pods had nodes and not all ranks ran yet."
    )
    training_seconds: Count = Field(
        default=0, description="Seconds in which all ranks ran, without those whose work was lost."
    )
    lost_seconds: Count = Field(
        default=0,
        description="Seconds of work that failures discarded, and of stopping pods and waiting between attempts.",
    )
    unsaved_seconds: Count | None = Field(
        default=None,
        description="Seconds of trainingSeconds since the newest checkpoint. They are lost if the current attempt fails.",
    )
    goodput_percent: float | None = Field(
        default=None, description="trainingSeconds as a percentage of the sum of all four."
    )
    until: Time = Field(description="Time up to which these figures are accounted.")


class Progress(Resource):
    """Progress of the training, read from rank 0's latest progress line."""

    step: Count = Field(description="Optimizer steps that are done.")
    total_steps: Count | None = Field(default=None, description="Optimizer steps of the whole training.")
    epoch: Count | None = Field(default=None, description="Current epoch, counted from 0.")
    loss: float | None = Field(default=None, description="Latest training loss.")
    samples_per_second: float | None = Field(default=None, description="Throughput of all ranks together.")
    eta: Text | None = Field(
        default=None, description="Estimated time until the end of the training, for example 1h5m."
    )
    eta_seconds: Count | None = Field(
        default=None, description="The same as an integer: estimated seconds until the end of the training."
    )
    checkpoint_step: Count | None = Field(default=None, description="Step of the newest complete checkpoint.")
    in_place_restarts: Count | None = Field(
        default=None, description="How often all ranks of this attempt have started again within their pods."
    )
    in_place_cause: Text | None = Field(
        default=None,
        description="Cause of the last of these restarts, for example: rank 1 was killed by SIGKILL at step 345.",
    )
    joined_replacements: Count | None = Field(
        default=None,
        description="Replacements of pods in this attempt whose ranks have joined the others. Once each new pod has, it is the sum of"
        " replacedPods.replacement.",
    )
    phase: Text | None = Field(
        default=None, description="What rank 0 is doing, for example train, evaluate or checkpoint."
    )
    metrics: Annotated[dict[str, float], Field(max_length=contract.MAX_METRICS)] | None = Field(
        default=None, description="Further values by name, the latest of each, among them those of the last evaluation."
    )
    alive: Count | None = Field(
        default=None, description="Signs of life within a phase without steps, such as an evaluation."
    )
    unreadable: Text | None = Field(
        default=None,
        description="Field of the progress line that cannot be read, for example: loss is not finite.",
    )
    headline: Text | None = Field(
        default=None, description="One of the metrics as short text, for example accuracy 99.72 %."
    )


class Failure(Resource):
    """A failure that ended an attempt, or that took pods of it away which were replaced."""

    attempt: AttemptNumber = Field(description="Number of the attempt that failed.")
    rank: NodeRank | None = Field(default=None, description="Node rank of the pod that caused the failure.")
    global_rank: Count | None = Field(
        default=None,
        description="Rank, among all processes of the job, of the process that caused the failure; absent where only its pod is known.",
    )
    pod: Text | None = Field(default=None, description="Name of the pod that caused the failure.")
    node: Text | None = Field(default=None, description="Node on which that pod ran.")
    exit_code: int | None = Field(
        default=None, description="Exit code of the program, or of the worker that torchrun reports."
    )
    signal: int | None = Field(default=None, description="Number of the signal that killed the program.")
    checkpoint_step: Count | None = Field(
        default=None, description="Step of the checkpoint that the program saved before it stopped on request."
    )
    replaced: bool | None = Field(
        default=None,
        description="True where only the lost pods were replaced, and the attempt continued.",
    )
    reason: Text = Field(description="Class of the failure.")
    message: Text = Field(default="", description="Error message of the program, or of the cluster.")
    time: Time = Field(description="Time at which the operator recorded the failure.")


class ReplacedPod(Resource):
    """A rank of the current attempt whose pod was lost and replaced."""

    rank: NodeRank = Field(description="Node rank of the pod.")
    replacement: Count = Field(
        description="Number of times that the pod of this rank was replaced. It is at the end of the name of the pod."
    )
    spare: Text | None = Field(
        default=None, description="Deprecated: no longer set. An older release named a spare pod here."
    )


_RANK = attrgetter("rank")


def _by_rank(pods: list[ReplacedPod]) -> list[ReplacedPod]:
    return sorted(pods, key=_RANK)


class SchedulingStatus(Resource):
    """How the pods of the current attempt are scheduled."""

    provider: Text = Field(
        description="Scheduling provider of the pods, for example native; none if they are scheduled one by one."
    )


class DDPJobStatus(Resource):
    """The state of the job, as the operator observed it. Only the operator writes it."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(oldSelf.attempt) || (has(self.attempt) && self.attempt >= oldSelf.attempt)",
            "status.attempt must not decrease: the writer has an outdated version of the job",
        ),
    )

    phase: Text | None = Field(
        default=None, description="Phase of the job, as a summary for people. Programs should read the conditions."
    )
    reason: Text | None = Field(default=None, description="Reason for the phase, in CamelCase.")
    message: Text | None = Field(default=None, description="Explanation of the phase in one sentence.")
    conditions: Annotated[list[Condition], Field(max_length=32)] = Field(
        default=[],
        description="Conditions of the job: Created, Running, Restarting, Suspended, Stalled, Succeeded and Failed.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    observed_generation: Count = Field(default=0, description="metadata.generation that the operator has acted on.")
    image: Text | None = Field(
        default=None, description="Image of the pods where spec.image is not set; fixed when the job first ran."
    )
    attempt: AttemptNumber = Field(default=1, description="Number of the current attempt, counted from 1.")
    ready: Text | None = Field(default=None, description="Running pods of the current attempt, for example 3/4.")
    ready_replicas: Annotated[int, Field(ge=0, le=MAX_NODES)] | None = Field(
        default=None, description="Number of running pods of the current attempt: the first number of ready."
    )
    replicas: NumNodes | None = Field(
        default=None, description="Number of pods of the current attempt: the second number of ready."
    )
    shrunk_from: NumNodes | None = Field(
        default=None,
        description="With minNodes: the value of spec.nodes while the current attempt runs on fewer nodes; absent otherwise.",
    )
    selector: Text | None = Field(
        default=None,
        description="Label selector of the pods and the Service of the job, in the form of kubectl --selector.",
    )
    replaced_pods: Annotated[list[ReplacedPod], AfterValidator(_by_rank), Field(max_length=MAX_NODES)] = Field(
        default=[], description="Ranks of the current attempt whose pods were lost and replaced."
    )
    restarts: Restarts = Field(default=Restarts(), description="Restarts of the job so far.")
    progress: Progress | None = Field(default=None, description="Progress of the training.")
    failure: Failure | None = Field(default=None, description="The most recent failure.")
    attempts: Annotated[list[Failure], Field(max_length=100)] = Field(
        default=[], description="Failures of the ten most recent attempts that failed."
    )
    time: TimeSpent | None = Field(default=None, description="How the job spent its time.")
    start_time: Time | None = Field(default=None, description="Time at which the operator first acted on the job.")
    completion_time: Time | None = Field(default=None, description="Time at which the job succeeded or failed.")
    attempt_start_time: Time | None = Field(
        default=None, description="Time at which the operator began to create the current attempt's pods."
    )
    retry_time: Time | None = Field(
        default=None, description="Earliest time at which pods of the current attempt are created."
    )
    scheduling: SchedulingStatus | None = Field(
        default=None, description="How the pods of the current attempt are scheduled; absent before they are created."
    )
    queued_since: Time | None = Field(
        default=None,
        description="Time at which the job began to wait for nodes. Releasing a partly scheduled gang does not reset it.",
    )
    give_backs: Count = Field(default=0, description="How many times in a row a partly scheduled gang was released.")
    scheduled_time: Time | None = Field(
        default=None, description="Time from which all pods of the current attempt had a node."
    )
    running_since: Time | None = Field(default=None, description="Time from which all pods of the current attempt ran.")
    checkpoint_time: Time | None = Field(
        default=None, description="Time at which the newest checkpoint of the current attempt was first reported."
    )
    active_seconds_before: Count = Field(
        default=0, description="Seconds that earlier attempts count toward deadlines.activeSeconds."
    )

    def condition(self, type_: ConditionType) -> bool:
        """Whether a condition is True."""
        return any(condition.type == type_ and condition.status == "True" for condition in self.conditions)

    def replacement(self, rank: int) -> int:
        """How often the pod of this node rank has been replaced in the current attempt."""
        # By bisection, since it is asked of each pod: a zone may take a thousand nodes of a job at once.
        at = bisect_left(self.replaced_pods, rank, key=_RANK)
        is_there = at < len(self.replaced_pods) and self.replaced_pods[at].rank == rank
        return self.replaced_pods[at].replacement if is_there else 0

    @property
    def finished(self) -> bool:
        """Whether the job has succeeded or failed."""
        return self.condition(ConditionType.SUCCEEDED) or self.condition(ConditionType.FAILED)

    def as_json(self) -> dict[str, Any]:
        """The status as JSON for the API, without fields that are None or an empty list."""
        return _without_empty_lists(self.model_dump(mode="json", by_alias=True, exclude_none=True))


def _without_empty_lists(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_empty_lists(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value != []
    }
