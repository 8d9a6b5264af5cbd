"""What policies decide on: all that is known of one job with a readable spec, sorted and put on one clock."""

from dataclasses import dataclass

from ddpjob_operator.api.scheduling import GangMode
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import DDPJobStatus, Failure, Progress
from ddpjob_operator.core.failure.node_avoidance import avoided_nodes
from ddpjob_operator.core.failure.refine_record import RefinedRecord, refine_record
from ddpjob_operator.core.gang import Gang, gang_of
from ddpjob_operator.core.model import Job, Observed
from ddpjob_operator.core.times import epoch_seconds, rfc3339
from ddpjob_operator.scheduling.interface import Provider
from ddpjob_operator.scheduling.none import NO_PROVIDER


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """When the current attempt reached each step, in seconds since the epoch; None for a step not reached yet.

    A step that shows for the first time was reached now.
    """

    creation_began: float
    queued: float
    """When the gang began to wait for nodes; giving some back does not begin the wait again."""
    scheduled: float | None
    """When every pod had a node."""
    running: float | None
    """When every rank ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One job at one moment."""

    observed: Observed
    spec: DDPJobSpec
    """The spec, with the number of nodes of the current attempt."""
    gang: Gang
    clocks: Clocks
    latest_record: RefinedRecord
    """The failure that led to the current attempt, by the best evidence available now."""
    now: float
    """Seconds since the epoch."""
    provider: Provider
    """What schedules the pods of the current attempt."""
    configured_provider: Provider
    """What the operator uses for new attempts."""

    @property
    def job(self) -> Job:
        """The job itself."""
        return self.observed.job

    @property
    def next_provider(self) -> Provider:
        """What schedules the pods of the next attempt."""
        return NO_PROVIDER if self.spec.scheduling.gang is GangMode.NONE else self.configured_provider

    @property
    def wanted_nodes(self) -> int:
        """spec.nodes as it is now, for the next attempt."""
        return self.job.spec.nodes if self.job.spec else self.spec.nodes

    @property
    def status(self) -> DDPJobStatus:
        """The stored status."""
        return self.observed.job.status

    @property
    def progress(self) -> Progress | None:
        """The latest progress. What it counts in the attempt is never less than was reported before: a line may omit it."""
        known, read = self.status.progress, self.observed.progress
        if known is None or read is None:
            return read or known
        restarts = max(known.in_place_restarts or 0, read.in_place_restarts or 0)
        joined = max(known.joined_replacements or 0, read.joined_replacements or 0)
        of_attempt = {
            "in_place_restarts": restarts or None,
            "in_place_cause": read.in_place_cause or known.in_place_cause,
            "joined_replacements": joined or None,
        }
        return read.model_copy(update=of_attempt)

    @property
    def failure(self) -> Failure | None:
        """The failure that led to the current attempt; None if something else did."""
        return self.latest_record.failure

    @property
    def avoided_nodes(self) -> tuple[str, ...]:
        """Nodes that new pods keep away from if there are others."""
        return () if self.observed.one_machine else avoided_nodes(self.status)


def situation_of(observed: Observed, spec: DDPJobSpec, now: float, provider: Provider = NO_PROVIDER) -> Situation:
    """The situation of a job that has not finished."""
    gang = gang_of(observed, spec.nodes)
    return Situation(
        observed=observed,
        spec=spec,
        gang=gang,
        clocks=_clocks(observed.job.status, gang, now),
        latest_record=refine_record(observed, spec, now),
        now=now,
        provider=provider_of_attempt(spec, gang, provider).for_attempt(observed),
        configured_provider=provider,
    )


def provider_of_attempt(spec: DDPJobSpec, gang: Gang, configured: Provider) -> Provider:
    """The provider of the current attempt: the configured one, unless its first pods were created for another.

    An operator that is upgraded or configured otherwise leaves running pods as they are. A group for only the pods that
    are still missing would wait for the others for ever.
    """
    if spec.scheduling.gang is GangMode.NONE:
        return NO_PROVIDER
    is_same = all(pod.scheduling == configured.name for pod in gang.current.values())
    return configured if is_same else NO_PROVIDER


def _clocks(status: DDPJobStatus, gang: Gang, now: float) -> Clocks:
    this_second = epoch_seconds(rfc3339(now))  # as the status will hold it

    def reached(stored: str | None, shows: bool) -> float | None:
        return epoch_seconds(stored) if stored else this_second if shows else None

    return Clocks(
        creation_began=reached(status.attempt_start_time, True) or this_second,
        queued=reached(status.queued_since, True) or this_second,
        scheduled=reached(status.scheduled_time, gang.all_scheduled),
        running=reached(status.running_since, gang.all_up),
    )
