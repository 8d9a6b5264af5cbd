"""The status of a job after a decision: why does it say what it says?

The stored status is the job's memory; each decision changes some of its fields. Equal situations make equal statuses, so
an operator that restarts writes nothing.
"""

from collections.abc import Mapping
from typing import Any

from ddpjob_operator.api.names import LABEL_JOB_UID, ConditionType, Phase, Reason
from ddpjob_operator.api.status import (
    MAX_TEXT_LENGTH,
    Condition,
    DDPJobStatus,
    Failure,
    ReplacedPod,
    Restarts,
    SchedulingStatus,
)
from ddpjob_operator.core.decision import (
    AwaitEvidence,
    Decision,
    Finish,
    KeepWhole,
    ReplacePods,
    StartNextAttempt,
    StaySuspended,
    Suspend,
    WaitToStart,
)
from ddpjob_operator.core.failure.restart import with_restarts_in_place
from ddpjob_operator.core.model import Observed
from ddpjob_operator.core.refusals import refusals
from ddpjob_operator.core.render.pods import default_image
from ddpjob_operator.core.render.time_accounting import (
    active_seconds,
    with_time_accounted,
    with_work_lost,
    with_work_saved,
)
from ddpjob_operator.core.situation import Situation
from ddpjob_operator.core.times import rfc3339
from ddpjob_operator.core.untrusted import beginning

#: Past attempts that the status remembers.
MAX_PAST_ATTEMPTS = 10


def status_after(situation: Situation, decision: Decision) -> DDPJobStatus:
    """The status of the job after this decision."""
    match decision:
        case AwaitEvidence():
            return _acted_on(situation.observed, situation.now)
        case KeepWhole():
            return _whole_gang(situation, decision)
        case WaitToStart():
            return _waiting_to_start(situation, decision)
        case StaySuspended():
            return _suspended(situation, decision)
        case StartNextAttempt():
            return _next_attempt(situation, decision)
        case Suspend():
            return _suspending(situation, decision)
        case ReplacePods():
            return _replacing(situation, decision)
        case Finish():
            return _end(situation, decision)


def still_finished(observed: Observed, now: float) -> DDPJobStatus:
    """The status of a finished job: what changes are the generation of the spec that it is for, and what cannot be removed.

    `kubectl wait --for=condition=…` compares the generation of the condition, not that of the status.
    """
    generation = {"observed_generation": observed.job.generation}
    conditions = [condition.model_copy(update=generation) for condition in observed.job.status.conditions]
    status = observed.job.status.model_copy(update={**generation, "conditions": conditions})
    refused = refusals(observed.refused_removals)
    truths = {ConditionType.STALLED: bool(refused)}
    return _with_conditions(observed, status, truths, reason=Reason.REMOVAL_REJECTED, message=refused, now=now)


def stalled(observed: Observed, reason: Reason, message: str, now: float) -> DDPJobStatus:
    """The status of a job that is left as it is, with a condition that says why; it is that of a new job, too."""
    status, message = observed.job.status, beginning(message, MAX_TEXT_LENGTH)
    if status.phase is None:
        status = status.model_copy(update={"phase": Phase.PENDING, "reason": reason, "message": message})
    return _with_conditions(observed, status, {ConditionType.STALLED: True}, reason=reason, message=message, now=now)


def finished(observed: Observed, end: Finish, now: float, status: DDPJobStatus | None = None) -> DDPJobStatus:
    """The job's end, which never changes again. `status` is the observed one unless it is given."""
    status = status or _acted_on(observed, now)
    spec = observed.job.spec_of_attempt
    changes: dict[str, Any] = {
        **(_remembered(status, end.failure) if end.failure else {}),
        "completion_time": rfc3339(now),
        "active_seconds_before": round(active_seconds(status, now)),
        "scheduled_time": None,
        **({} if end.succeeded else _ready(0, spec.nodes if spec else None)),
    }
    truths = {
        ConditionType.RUNNING: False,
        ConditionType.RESTARTING: False,
        ConditionType.SUSPENDED: False,
        ConditionType.SUCCEEDED: end.succeeded,
        ConditionType.FAILED: not end.succeeded,
    }
    if end.succeeded:  # all pods may have ended when they were first seen
        truths[ConditionType.CREATED] = True
    spent = with_time_accounted(status, now)
    return _shown(
        observed,
        (with_work_saved(spent) if end.succeeded else with_work_lost(spent)).model_copy(update=changes),
        now,
        phase=Phase.SUCCEEDED if end.succeeded else Phase.FAILED,
        reason=end.reason,
        message=end.message,
        truths=truths,
    )


def _whole_gang(situation: Situation, decision: KeepWhole) -> DDPJobStatus:
    status = _with_refined_record(situation, _with_clocks(situation))
    truths = {ConditionType.CREATED: decision.created, ConditionType.SUSPENDED: False}
    if decision.running:
        truths |= {ConditionType.RUNNING: True, ConditionType.RESTARTING: False}
    restarting = status.condition(ConditionType.RESTARTING)
    return _shown(
        situation.observed,
        status,
        situation.now,
        phase=Phase.RUNNING if decision.running else Phase.RESTARTING if restarting else Phase.PENDING,
        reason=decision.reason,
        message=_with_refusals(situation, decision.message),
        truths=truths,
    )


def _waiting_to_start(situation: Situation, decision: WaitToStart) -> DDPJobStatus:
    status = _with_refined_record(situation, _acted_on(situation.observed, situation.now))
    restarting = status.condition(ConditionType.RESTARTING)
    return _shown(
        situation.observed,
        status,
        situation.now,
        phase=Phase.RESTARTING if restarting else Phase.PENDING,
        reason=decision.reason,
        message=_with_refusals(situation, decision.message),
        truths={ConditionType.SUSPENDED: False},
    )


def _suspended(situation: Situation, decision: StaySuspended) -> DDPJobStatus:
    # The job leaves the queue, whose clocks begin again when it is resumed.
    changes = {"attempt_start_time": None, "queued_since": None, "retry_time": None, "give_backs": 0}
    return _shown(
        situation.observed,
        _acted_on(situation.observed, situation.now).model_copy(update=changes),
        situation.now,
        phase=Phase.SUSPENDED,
        reason=Reason.SUSPENDED,
        message=_with_refusals(situation, decision.message),
        truths={ConditionType.SUSPENDED: True, ConditionType.RESTARTING: False, ConditionType.RUNNING: False},
    )


def _next_attempt(situation: Situation, decision: StartNextAttempt) -> DDPJobStatus:
    """The status that names the next attempt."""
    status = _after_attempt(situation, decision.failure, decision.restarts)
    changes: dict[str, Any] = {
        **_ready(0, decision.shrinks_to),
        "shrunk_from": situation.wanted_nodes if decision.shrinks_to else None,
        "retry_time": rfc3339(situation.now + decision.delay_seconds) if decision.delay_seconds else None,
    }
    if decision.releases_partial_gang:  # it keeps its position in the queue
        changes["queued_since"] = situation.status.queued_since
        changes["give_backs"] = situation.status.give_backs + 1
    return _shown(
        situation.observed,
        status.model_copy(update=changes),
        situation.now,
        phase=decision.phase,
        reason=decision.reason,
        message=decision.message,
        truths=_not_running(restarting=decision.phase == Phase.RESTARTING),
    )


def _suspending(situation: Situation, decision: Suspend) -> DDPJobStatus:
    """The status that says that the job is suspended, while its pods are still to be stopped."""
    return _shown(
        situation.observed,
        _after_attempt(situation).model_copy(update=_ready(0, None)),
        situation.now,
        phase=Phase.SUSPENDED,
        reason=Reason.SUSPENDED,
        message=decision.message,
        truths=_not_running(suspended=True),
    )


def _replacing(situation: Situation, decision: ReplacePods) -> DDPJobStatus:
    """The status that names the new pods of these ranks."""
    now, gang = situation.now, situation.gang
    status = with_time_accounted(_with_progress(situation, _acted_on(situation.observed, now)), now)
    ranks = sorted({*decision.ranks, *(pod.rank for pod in status.replaced_pods)})
    replaced = (
        ReplacedPod(rank=rank, replacement=status.replacement(rank) + (rank in decision.ranks)) for rank in ranks
    )
    changes: dict[str, Any] = {
        **_remembered(status, decision.failure),
        **_before_it_runs(status, now),
        **_ready(gang.num_up, gang.num_nodes),
        "replaced_pods": list(replaced),
        "restarts": decision.restarts,
    }
    return _shown(
        situation.observed,
        status.model_copy(update=changes),
        now,
        phase=Phase.RESTARTING,
        reason=decision.failure.reason,
        message=decision.message,
        truths=_not_running(restarting=True),
    )


def _after_attempt(
    situation: Situation, failure: Failure | None = None, restarts: Restarts | None = None
) -> DDPJobStatus:
    """The status with the number of the next attempt, once the current one is over."""
    now = situation.now
    status = with_time_accounted(_with_progress(situation, _acted_on(situation.observed, now)), now)
    # Pods that are stopped may save their work. Ranks that wait for a replaced pod end without saving more.
    is_saved = status.running_since is not None if failure is None else failure.checkpoint_step is not None
    status = with_work_saved(status) if is_saved else with_work_lost(status)
    restarts = restarts or with_restarts_in_place(situation.spec, status.restarts, status.progress, now)
    changes: dict[str, Any] = {
        **(_remembered(status, failure) if failure else {}),
        **_before_it_runs(status, now),
        "attempt": status.attempt + 1,
        "replaced_pods": [],
        "shrunk_from": None,
        "checkpoint_time": None,
        # Restarts in place are among the counted ones now.
        "restarts": restarts.model_copy(update={"in_place_counted": 0}),
        "progress": status.progress
        and status.progress.model_copy(
            update={"in_place_restarts": None, "in_place_cause": None, "joined_replacements": None}
        ),
    }
    return status.model_copy(update=changes)


def _before_it_runs(status: DDPJobStatus, now: float) -> dict[str, Any]:
    """The clocks of a gang of which pods are still to be created."""
    return {
        "attempt_start_time": None,
        "scheduled_time": None,
        "running_since": None,
        "retry_time": None,
        "queued_since": None,
        "give_backs": 0,
        "active_seconds_before": round(active_seconds(status, now)),
    }


def _not_running(*, restarting: bool = False, suspended: bool = False) -> dict[ConditionType, bool]:
    return {
        ConditionType.CREATED: False,
        ConditionType.RUNNING: False,
        ConditionType.RESTARTING: restarting,
        ConditionType.SUSPENDED: suspended,
    }


def _end(situation: Situation, decision: Finish) -> DDPJobStatus:
    status = _with_clocks(situation)
    if decision.progress is not None:
        status = status.model_copy(update={"progress": decision.progress})
    return finished(situation.observed, decision, situation.now, status)


def _acted_on(observed: Observed, now: float) -> DDPJobStatus:
    """The observed status with what is set once: when the job was first acted on, its image, and how to select its pods."""
    status, spec = observed.job.status, observed.job.spec
    changes: dict[str, Any] = {}
    if status.selector is None:
        changes["selector"] = f"{LABEL_JOB_UID}={observed.job.uid}"
    if status.start_time is None:
        changes["start_time"] = rfc3339(now)
    if status.image is None and spec is not None and spec.image is None:
        changes["image"] = default_image(observed)
    return status.model_copy(update=changes) if changes else status


def _with_clocks(situation: Situation) -> DDPJobStatus:
    """The status with the steps that the current attempt has reached, and with its latest progress."""
    status, clocks, gang = _acted_on(situation.observed, situation.now), situation.clocks, situation.gang
    changes: dict[str, Any] = {}
    if status.attempt_start_time is None:
        changes |= {"attempt_start_time": rfc3339(clocks.creation_began), "retry_time": None}
        changes["queued_since"] = rfc3339(clocks.queued)
        changes["scheduling"] = SchedulingStatus(provider=situation.provider.name)
    if status.scheduled_time is None and clocks.scheduled is not None:
        changes |= {"scheduled_time": rfc3339(clocks.scheduled), "give_backs": 0}
    if status.running_since is None and clocks.running is not None:
        changes["running_since"] = rfc3339(clocks.running)
    if changes:  # what the job was doing until now, before the clocks say otherwise
        status = with_time_accounted(status, situation.now).model_copy(update=changes)
    size = _ready(gang.num_up, gang.num_nodes)
    if gang.num_nodes == situation.wanted_nodes:  # somebody has lowered spec.nodes to what the job runs on
        size["shrunk_from"] = None
    return _with_progress(situation, status).model_copy(update=size)


def _ready(num_up: int, num_nodes: int | None) -> dict[str, Any]:
    """The fields that say how many pods run; absent while it is not known of how many."""
    if num_nodes is None:
        return {"ready": None, "ready_replicas": None, "replicas": None}
    return {"ready": f"{num_up}/{num_nodes}", "ready_replicas": num_up, "replicas": num_nodes}


def _with_progress(situation: Situation, status: DDPJobStatus) -> DDPJobStatus:
    progress = situation.progress
    if progress is None or progress == status.progress:
        return status
    known = status.progress.checkpoint_step if status.progress else None
    saved = progress.checkpoint_step
    changes: dict[str, Any] = {"progress": progress}
    status = with_time_accounted(status, situation.now)
    if saved is not None and (known is None or saved > known):
        changes["checkpoint_time"] = rfc3339(situation.now)
        status = with_work_saved(status)
    return status.model_copy(update=changes)


def _with_refined_record(situation: Situation, status: DDPJobStatus) -> DDPJobStatus:
    """The status with the best record there is of the failure that led to the current attempt."""
    record = situation.latest_record
    if record.failure is None or record.failure == status.failure:
        return status
    changes = {**_remembered(status, record.failure), "restarts": record.restarts}
    if record.retries_at_once:
        changes["retry_time"] = None
    return status.model_copy(update=changes)


def _with_refusals(situation: Situation, message: str) -> str:
    """The message of a job of which the API server refuses to delete or to stop something."""
    refused = refusals(situation.observed.refused_removals)
    return f"{message}; {refused}" if refused else message


def _remembered(status: DDPJobStatus, failure: Failure) -> dict[str, Any]:
    """The fields that hold a failure; a better record replaces the one that ended the same attempt."""
    others = [past for past in status.attempts if past.replaced or past.attempt != failure.attempt]
    return {"failure": failure, "attempts": [*others, failure][-MAX_PAST_ATTEMPTS:]}


def _shown(
    observed: Observed,
    status: DDPJobStatus,
    now: float,
    *,
    phase: Phase,
    reason: str,
    message: str,
    truths: Mapping[ConditionType, bool],
) -> DDPJobStatus:
    """The status in this phase, for this reason, with these conditions; a spec that was unreadable is readable now."""
    turns = any(
        type_ in truths and status.condition(type_) != truths[type_]
        for type_ in (ConditionType.RESTARTING, ConditionType.SUSPENDED)  # time is accounted by these
    )
    if turns:
        status = with_time_accounted(status, now)
    message = beginning(message, MAX_TEXT_LENGTH)
    shown = status.model_copy(update={"phase": phase, "reason": reason, "message": message})
    truths = {**truths, ConditionType.STALLED: False}
    return _with_conditions(observed, shown, truths, reason=reason, message=message, now=now)


def _with_conditions(
    observed: Observed,
    status: DDPJobStatus,
    truths: Mapping[ConditionType, bool],
    *,
    reason: str,
    message: str,
    now: float,
) -> DDPJobStatus:
    """The status with these conditions.

    Only what is true has a message. A condition that stays True takes the new reason and message; one that stays False,
    or never was and is not, is left as it is; only a change moves its transition time.
    """
    generation = observed.job.generation
    conditions = {condition.type: condition for condition in status.conditions}
    for type_, truth in truths.items():
        old = conditions.get(type_)
        was = old is not None and old.status == "True"
        if not truth and not was:
            continue
        conditions[type_] = Condition(
            type=type_,
            status="True" if truth else "False",
            reason=reason,
            message=beginning(message, MAX_TEXT_LENGTH) if truth else "",
            last_transition_time=old.last_transition_time if old and was == truth else rfc3339(now),
            observed_generation=generation,
        )
    ordered = [conditions[type_] for type_ in ConditionType if type_ in conditions]
    return status.model_copy(update={"conditions": ordered, "observed_generation": generation})
