"""What the operator says of a job: `status` of a DDPJob.

It is also the operator's memory: `plan` reads its clocks and counters from here and from pods, never from the process.
Times are RFC 3339 in UTC with whole seconds. Phases and reasons are text here, so that an operator can read the status
that a newer one left; `names.py` holds the closed lists.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from ddpjob_operator.api.names import ConditionType
from ddpjob_operator.api.resource import Resource, Rule

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class Condition(Resource):
    """One condition, as everywhere in Kubernetes."""

    type: str = Field(description="What it is about.")
    status: str = Field(description="True or False.")
    reason: str = Field(description="One word from the closed list.")
    message: str = Field(default="", description="One sentence.")
    last_transition_time: Time = Field(description="When status changed last.")
    observed_generation: int = Field(default=0, description="metadata.generation that it was made for.")


class Restarts(Resource):
    """Restarts so far."""

    counted: int = Field(default=0, description="Restarts that count against maxRestarts, over the job's life.")
    infrastructure: int = Field(
        default=0, description="Restarts that do not count: lost nodes, evictions and the like."
    )
    counted_times: list[Time] = Field(default=[], description="When the counted restarts of the window happened.")
    in_a_row: int = Field(
        default=0, description="Failures since an attempt last ran well; the back-off grows with them."
    )


class TimeSpent(Resource):
    """Where the job's time went, suspension apart. Training that a failure threw away is lost, not training."""

    queued_seconds: int = Field(default=0, description="Waiting for a place on nodes.")
    starting_seconds: int = Field(default=0, description="On nodes, with ranks that do not run yet.")
    training_seconds: int = Field(default=0, description="All ranks running, and the work kept.")
    lost_seconds: int = Field(
        default=0, description="Work that failures threw away, and stopping and waiting between attempts."
    )
    goodput_percent: float | None = Field(default=None, description="Share of training in all of these.")
    until: Time = Field(description="What came after is not told yet.")


class Progress(Resource):
    """Where training stands, from rank 0's progress line."""

    step: int = Field(description="Optimizer steps done.")
    total_steps: int | None = Field(default=None, description="Optimizer steps of the whole training.")
    epoch: int | None = Field(default=None, description="Epoch in work, from 0.")
    loss: float | None = Field(default=None, description="Latest training loss.")
    samples_per_second: float | None = Field(default=None, description="Over all ranks.")
    eta: str | None = Field(default=None, description="Estimated time to the end, for example 1h5m.")
    checkpoint_step: int | None = Field(default=None, description="Step of the newest complete checkpoint.")
    phase: str | None = Field(default=None, description="What rank 0 is doing.")


class Failure(Resource):
    """Why an attempt ended, and where."""

    attempt: int = Field(description="The attempt that ended.")
    rank: int | None = Field(default=None, description="Node rank of the pod that is the cause.")
    pod: str | None = Field(default=None, description="Its name.")
    node: str | None = Field(default=None, description="The node it ran on.")
    exit_code: int | None = Field(default=None, description="What the program's main process, or its worker, returned.")
    signal: int | None = Field(default=None, description="The signal it died of.")
    checkpoint_step: int | None = Field(default=None, description="Step saved, where it stopped with a checkpoint.")
    reason: str = Field(description="The class of the failure.")
    message: str = Field(default="", description="The program's own last words, or the cluster's.")
    time: Time = Field(description="When the operator saw it.")


class DDPJobStatus(Resource):
    """Written by the operator alone."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(oldSelf.attempt) || (has(self.attempt) && self.attempt >= oldSelf.attempt)",
            "attempts only grow: a writer with an old view of the job must not take one back",
        ),
    )

    phase: str | None = Field(default=None, description="Where the job stands, for people.")
    reason: str | None = Field(default=None, description="Why, in one word from a closed list.")
    message: str | None = Field(default=None, description="Why, in one sentence.")
    conditions: list[Condition] = Field(
        default=[],
        description="Created, Running, Restarting, Suspended, Stalled, Succeeded, Failed.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    observed_generation: int = Field(default=0, description="metadata.generation that this status is for.")
    image: str | None = Field(default=None, description="The default image, pinned when the job first ran.")
    attempt: int = Field(default=1, description="The current attempt, from 1.")
    ready: str | None = Field(default=None, description="Running pods of the current attempt, for example 3/4.")
    restarts: Restarts = Field(default=Restarts(), description="Restarts so far.")
    progress: Progress | None = Field(default=None, description="Where training stands.")
    failure: Failure | None = Field(default=None, description="Why the latest attempt that failed ended.")
    attempts: list[Failure] = Field(default=[], description="Past attempts, the latest ten.")
    time: TimeSpent | None = Field(default=None, description="Where the time went.")
    start_time: Time | None = Field(default=None, description="When the job was first acted on.")
    completion_time: Time | None = Field(default=None, description="When it ended for good.")
    attempt_start_time: Time | None = Field(
        default=None, description="When the current attempt's pods began to be created."
    )
    retry_time: Time | None = Field(default=None, description="No pod of the current attempt is created before.")
    queued_since: Time | None = Field(
        default=None, description="When the gang began to wait for places; giving some back does not begin anew."
    )
    give_backs: int = Field(default=0, description="Times that a partly placed gang gave its places back in a row.")
    scheduled_time: Time | None = Field(default=None, description="When all of them had a node.")
    running_since: Time | None = Field(default=None, description="When all of them ran.")
    checkpoint_time: Time | None = Field(
        default=None, description="When a new checkpoint of the current attempt was seen last."
    )
    active_seconds_before: int = Field(default=0, description="Seconds on nodes in earlier attempts.")

    def condition(self, type_: ConditionType) -> bool:
        """Whether a condition is True."""
        return any(condition.type == type_ and condition.status == "True" for condition in self.conditions)

    @property
    def finished(self) -> bool:
        """Whether the job has ended for good."""
        return self.condition(ConditionType.SUCCEEDED) or self.condition(ConditionType.FAILED)

    def as_json(self) -> dict[str, Any]:
        """The status as it stands in the API: what is None or an empty list is absent."""
        return _without_empty_lists(self.model_dump(mode="json", by_alias=True, exclude_none=True))


def _without_empty_lists(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_empty_lists(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value != []
    }
