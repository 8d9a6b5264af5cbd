"""The brain: what to do for one job, given all that is known of it.

Pure and level-triggered. Nothing here has a memory: clocks and counters are in the status, everything else is derived
from pods. For the state that a plan asks for, `plan` asks for nothing.

Policies decide, one module for each reason to do something; the first one that decides is followed. `render` then turns
the decision into a status and into actions.
"""

from collections.abc import Callable, Sequence

from ddpjob_operator.core import render
from ddpjob_operator.core.actions import Lookup, Plan
from ddpjob_operator.core.decision import Advice, WrittenAhead
from ddpjob_operator.core.model import Observed
from ddpjob_operator.core.policies import (
    deadlines,
    failed_attempt,
    handover,
    hang,
    late_replacement,
    partial_gang,
    size,
    suspension,
    whole_gang,
)
from ddpjob_operator.core.policies.completion import all_ranks_succeeded
from ddpjob_operator.core.policies.finished_job import clean_up
from ddpjob_operator.core.policies.unreadable_spec import leave_alone_or_fail
from ddpjob_operator.core.situation import Situation, situation_of
from ddpjob_operator.core.times import soonest
from ddpjob_operator.scheduling.interface import Provider
from ddpjob_operator.scheduling.none import NO_PROVIDER

#: In the order in which they are asked. The last one always decides.
POLICIES: Sequence[Callable[[Situation], Advice]] = (
    all_ranks_succeeded,
    suspension.stop_while_suspended,
    size.change_size,
    suspension.replace_after_an_edit,
    suspension.replace_after_a_change_of_provider,
    suspension.replace_after_a_change_of_min_nodes,
    failed_attempt.restart_or_fail,  # one rank down is the whole gang down
    late_replacement.restart_what_cannot_meet,
    handover.wait_for_earlier_attempts,
    deadlines.end_what_takes_too_long,
    hang.end_what_makes_no_progress,
    partial_gang.release_held_nodes,
    size.use_free_places,
    whole_gang.keep_whole,
)


def plan(observed: Observed, now: float, provider: Provider = NO_PROVIDER) -> Plan:
    """What to do for one job at this moment, in seconds since the epoch, with this scheduling provider.

    What a user or a cluster can do ends in a status, not in an exception.
    """
    job = observed.job
    if job.is_managed_elsewhere:
        return Plan.nothing(job)
    if job.deleting:
        return Plan(status=job.status, actions=tuple(provider.end(observed)))  # owner references clean up the rest
    if job.status.finished:
        return clean_up(observed, now, provider)
    spec = job.spec_of_attempt
    if spec is None:
        return leave_alone_or_fail(observed, now)

    situation = situation_of(observed, spec, now, provider)
    advice = decide(situation)
    assert advice.decision is not None, "the last policy always decides"
    return Plan(
        status=render.status_after(situation, advice.decision),
        write_ahead=isinstance(advice.decision, WrittenAhead),
        actions=render.actions_of(situation, advice.decision),
        lookups=advice.lookups,
        wake_at=advice.wake_at,
    )


def decide(situation: Situation) -> Advice:
    """The first decision of a policy, with the lookups and the earliest wake-up of all policies asked up to it."""
    lookups: list[Lookup] = []
    wake_ups: list[float | None] = []
    for policy in POLICIES:
        advice = policy(situation)
        lookups += advice.lookups
        wake_ups.append(advice.wake_at)
        if advice.decision is not None:
            break
    return Advice(
        decision=advice.decision,
        lookups=tuple(dict.fromkeys(lookups)),
        wake_at=soonest(wake_ups, situation.now),
    )
