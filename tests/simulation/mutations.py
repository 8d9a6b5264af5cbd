"""Ways to break the engine, each of which the simulation must notice.

A mutation replaces one small piece of the operator by a plausible mistake. They are applied at
run time, so nothing of the operator knows of them.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core import free_places, render, situation, stopping
from ddpjob_operator.core import plan as planning
from ddpjob_operator.core.actions import CreateObject, CreatePod, DeletePod, PatchObject
from ddpjob_operator.core.failure import cause as failures
from ddpjob_operator.core.failure import refine_record, restart
from ddpjob_operator.core.gang import Gang, gang_of
from ddpjob_operator.core.model import Job
from ddpjob_operator.core.policies import (
    failed_attempt,
    finished_job,
    handover,
    hang,
    partial_gang,
    pod_replacement,
    suspension,
)
from ddpjob_operator.core.render import actions, pods, service
from ddpjob_operator.kube.cache.cache import Cache
from ddpjob_operator.kube.engine.actuator import Actuator
from ddpjob_operator.kube.engine.expectations import Expectations
from ddpjob_operator.kube.engine.reconciler import Reconciler
from ddpjob_operator.kube.engine.status_writer import StatusWriter
from ddpjob_operator.kube.engine.workqueue import WorkQueue
from ddpjob_operator.kube.lookups import node_reader
from ddpjob_operator.scheduling.native_v1alpha2 import NativeV1Alpha2
from ddpjob_operator.scheduling.pod_groups import PodGroups
from ddpjob_operator.transport.resources import DDPJOBS
from simulation.api_client import ModelClient
from simulation.schedule import GANGS, REPLACED_PODS, RESIZED

_REAL_DECIDE_RESTART = restart.decide_restart
_REAL_AFTER_REPLACEMENT = restart.after_replacement
_REAL_HAS_STOPPED: Callable[..., bool] = stopping.has_stopped
_REAL_ACTIONS_OF: Callable[..., Any] = render.actions_of
_REAL_KEEP_WHOLE: Callable[..., Any] = actions._keep_whole
_REAL_WRITE = StatusWriter.write
_REAL_MERGE_PATCH = ModelClient.merge_patch
_REAL_DELETE = ModelClient.delete
_REAL_ENVIRONMENT = pods.environment_of
_REAL_GANG_OF = gang_of
_REAL_SELECTOR = service.selector
_REAL_RELEASES_AT = partial_gang.releases_at


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _restarts_with(change: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def decide_restart(job: Any, spec: Any, status: Any, *more: Any) -> Any:
        decision = _REAL_DECIDE_RESTART(job, spec, status, *more)
        return replace(decision, restarts=change(status.restarts, decision.restarts))

    return decide_restart


def _counted_once_more(_: Any, after: Any) -> Any:
    return after.model_copy(update={"counted": after.counted + 1})


def _with_one_restart_more(job: Any, spec: Any, *more: Any) -> Any:
    restart = spec.restart.model_copy(update={"max_restarts": spec.restart.max_restarts + 1})
    return _REAL_DECIDE_RESTART(job, spec.model_copy(update={"restart": restart}), *more)


def _pods_first(situation: Any, decision: Any) -> Any:
    return tuple(sorted(_REAL_ACTIONS_OF(situation, decision), key=lambda a: not isinstance(a, CreatePod)))


def _without_service(situation: Any, decision: Any) -> Any:
    made = _REAL_ACTIONS_OF(situation, decision)
    return tuple(action for action in made if not isinstance(action, CreateObject | PatchObject))


def _stops_nothing_of_earlier_attempts(situation: Any) -> Any:
    made = _REAL_KEEP_WHOLE(situation)
    return tuple(action for action in made if isinstance(action, CreateObject | PatchObject | CreatePod))


def _ends_of_pods_there(situation: Any) -> Any:
    seen, now = situation.observed, situation.now
    return failures.ends_of(seen, (p for p in situation.gang.current.values() if failures.has_ended(p, now)), now)


def _stopped_when_overdue(seen: Any, pod: Any, *_: Any) -> bool:
    return pod.deletion is not None or pod.all_ended or pod.node in seen.nodes_gone


def _stopped_with_its_program(seen: Any, pod: Any, *more: Any) -> bool:
    return pod.exit is not None or _REAL_HAS_STOPPED(seen, pod, *more)


async def _delete_by_name(self: ModelClient, *arguments: Any, **options: Any) -> None:
    await _REAL_DELETE(self, *arguments, **{**options, "uid": None})


async def _patch_any_version(self: ModelClient, resource: Any, *arguments: Any, **options: Any) -> Any:
    if resource is DDPJOBS:
        namespace, name, body = arguments
        arguments = (namespace, name, {key: value for key, value in body.items() if key != "metadata"})
    return await _REAL_MERGE_PATCH(self, resource, *arguments, **options)


async def _write_anyway(self: StatusWriter, known: Any, wanted: Any, **options: Any) -> Any:
    if wanted == known.job.status and known.status:
        body = {"status": wanted.as_json()}
        await self._client.merge_patch(DDPJOBS, known.job.namespace, known.job.name, body, subresource="status")
    return await _REAL_WRITE(self, known, wanted, **options)


async def _ask_nobody(*_: Any) -> None:
    """Whoever has the name."""


def _first_attempts_environment(job: Any, *arguments: Any) -> Any:
    return _REAL_ENVIRONMENT(replace(job, status=job.status.model_copy(update={"attempt": 1})), *arguments)


def _selector_of_first_pods(job_uid: str, attempt: int, _: int = 0) -> dict[str, str]:
    return _REAL_SELECTOR(job_uid, attempt)


def _at_once(situation: Any) -> float | None:
    return situation.now if partial_gang.may_shrink(situation) else _REAL_RELEASES_AT(situation)


def _every_placeholder(situation: Any) -> list[Any]:
    return [pod for pod in situation.gang.placeholders if pod.attempt == situation.status.attempt]


def _without_replaced_pods(observed: Any, num_nodes: int) -> Gang:
    gang = _REAL_GANG_OF(observed, num_nodes)
    return replace(gang, old=tuple(pod for pod in gang.old if pod.attempt < observed.job.status.attempt))


def _put_any_version(real: Callable[..., bool]) -> Callable[..., bool]:
    def put(self: Any, body: Any) -> bool:
        known = self._entries.get((body["metadata"]["namespace"], body["metadata"]["name"]))
        if known is not None:
            object.__setattr__(known, "version", 0)
        return real(self, body)

    return put


async def _list_without_removing(self: Any, client: Any, namespace: Any, *, labels: Any = None, **_: Any) -> Any:
    version, num_repairs = "", 0
    async for page in client.pages(self.resource, namespace, self.labels if labels is None else labels):
        version = page.resource_version
        num_repairs += sum(self.put(body) for body in page.items)
    return version, num_repairs


@dataclass(frozen=True, slots=True)
class Mutation:
    """Pieces of the operator with their stand-ins."""

    replaced: tuple[tuple[Any, str, Any], ...]
    focus: str = "everything"
    """The kind of schedules that needs few of them to notice."""


#: Under a sentence that says what is wrong then.
_REPLACED: dict[str, tuple[tuple[Any, str, Any], ...]] = {
    "new pods do not wait for the old ones": ((handover, "may_still_run", _always([])),),
    "an overdue pod counts as stopped": (
        (actions, "has_stopped", _stopped_when_overdue),
        (stopping, "has_stopped", _stopped_when_overdue),
    ),
    "replaced pods do not wait for the lost ones": ((situation, "gang_of", _without_replaced_pods),),
    "a living sidecar is overlooked": (
        (actions, "has_stopped", _stopped_with_its_program),
        (stopping, "has_stopped", _stopped_with_its_program),
    ),
    "every node counts as lost": ((node_reader, "node_state", _always(node_reader.NodeState.GONE)),),
    "restarts are counted twice": ((failed_attempt, "decide_restart", _restarts_with(_counted_once_more)),),
    "one restart more than the limit is allowed": ((failed_attempt, "decide_restart", _with_one_restart_more),),
    "a replaced pod is counted as a restart of the gang": ((failed_attempt, "after_replacement", lambda it: it),),
    "a replaced pod is counted twice": (
        (failed_attempt, "after_replacement", lambda it: _counted_once_more(None, _REAL_AFTER_REPLACEMENT(it))),
    ),
    "restarts are not counted": ((failed_attempt, "decide_restart", _restarts_with(lambda before, _: before)),),
    "a refined failure is counted again": (
        (refine_record, "recount", lambda _, restarts, *__: _counted_once_more(None, restarts)),
    ),
    "PodGroups are left behind": ((PodGroups, "end", _always([])),),
    "pods name no PodGroup": ((NativeV1Alpha2, "decorate", _always(None)),),
    "a PodGroup is for one pod": (
        (NativeV1Alpha2, "group_spec", _always({"schedulingPolicy": {"gang": {"minCount": 1}}})),
    ),
    "pods are created before the Service": ((render, "actions_of", _pods_first),),
    "the Service is left as it is": ((render, "actions_of", _without_service),),
    "the Service is pointed at older attempts": ((service, "_pod_of", _always((0, 0))),),
    "the Service leads to a lost pod of rank 0": ((service, "selector", _selector_of_first_pods),),
    "stragglers are left alone": ((actions, "_keep_whole", _stops_nothing_of_earlier_attempts),),
    "pods run on after the end": ((finished_job, "stop_and_keep_logs", _always(())),),
    "outdated evidence stays": ((actions, "outdated_evidence", _always([])),),
    "all evidence is deleted": (
        (
            actions,
            "outdated_evidence",
            lambda it: [DeletePod(name=p.name, uid=p.uid, grace_seconds=1) for p in it.gang.old],
        ),
    ),
    "survivors are deleted by force": ((actions, "SURVIVOR_GRACE_SECONDS", 0),),
    "the back-off is skipped": ((handover, "starts_at", lambda situation: situation.now),),
    "a hang is not noticed": (
        (planning, "POLICIES", tuple(p for p in planning.POLICIES if p is not hang.end_what_makes_no_progress)),
    ),
    "a deleted pod is created again": ((failed_attempt, "_ends", _ends_of_pods_there),),
    "one rank's success is the gang's": (
        (Gang, "all_succeeded", property(lambda gang: any(pod.succeeded for pod in gang.current.values()))),
    ),
    "the end of a job is not final": ((DDPJobStatus, "finished", property(_always(False))),),
    "pods carry the variables of the first attempt": ((pods, "environment_of", _first_attempts_environment),),
    "deletions name no uid": ((ModelClient, "delete", _delete_by_name),),
    "statuses are written over any version": ((ModelClient, "merge_patch", _patch_any_version),),
    "a status is written although it is the same": ((StatusWriter, "write", _write_anyway),),
    "own writes are not remembered": ((Expectations, "sent", _always(None)), (Expectations, "doubt", _always(None))),
    "a pod of another owner counts as one of the job": ((Actuator, "_look_at_the_owner", _ask_nobody),),
    "older versions overwrite newer ones": ((Cache, "put", _put_any_version(Cache.put)),),
    "lists do not remove what is gone": ((Cache, "refresh", _list_without_removing),),
    "an attempt follows the spec's number of nodes": (
        (Job, "spec_of_attempt", property(lambda job: job.spec)),
        (suspension, "is_edited", _always(False)),
    ),
    "a gang does not wait for all nodes": ((partial_gang, "releases_at", _at_once),),
    "an attempt ends for places that are not there": ((free_places, "holders", _every_placeholder),),
    "a new pod that has not joined counts as a survivor": ((pod_replacement, "_all_have_joined", _always(True)),),
    "places are held after the end": ((render, "remove_placeholders", _always(())),),
    "no reconcile is scheduled for later": ((Reconciler, "_look_again", _always(None)),),
    "a failed reconcile is not repeated": ((WorkQueue, "retry", _always(1.0)),),
}

_FOCUS = {
    REPLACED_PODS: (
        *("a new pod that has not joined counts as a survivor", "a replaced pod is counted as a restart of the gang"),
        *("a replaced pod is counted twice", "the Service leads to a lost pod of rank 0"),
        "replaced pods do not wait for the lost ones",
    ),
    RESIZED: (
        *("an attempt follows the spec's number of nodes", "a gang does not wait for all nodes"),
        *("an attempt ends for places that are not there", "places are held after the end"),
    ),
    GANGS: ("PodGroups are left behind", "pods name no PodGroup", "a PodGroup is for one pod"),
    "two writers": ("the Service is pointed at older attempts", "stragglers are left alone"),
    "replaced jobs": ("deletions name no uid",),
    "failing ranks": ("outdated evidence stays", "a deleted pod is created again"),
    "old news": ("older versions overwrite newer ones",),
}
MUTATIONS = {
    name: Mutation(replaced, next((focus for focus, names in _FOCUS.items() if name in names), "everything"))
    for name, replaced in _REPLACED.items()
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The operator with this mutation, for a while."""
    with ExitStack() as stack:
        for target, attribute, stand_in in MUTATIONS[name].replaced:
            stack.enter_context(patch.object(target, attribute, stand_in))
        yield
