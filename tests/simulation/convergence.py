"""Checks each plan by itself: once it is carried out, the next plan is empty.

A plan's effects are applied to the very records it was made from, and it is asked again at the same moment: no action may
come twice, and after a few rounds (write ahead, stop, create) there is nothing left to do and no other status to write.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from ddpjob_operator.core import plan as plan_module
from ddpjob_operator.core.actions import (
    Action,
    CreateObject,
    CreatePod,
    DeleteJob,
    DeleteObject,
    DeletePod,
    DeletePods,
    LowerPodDeadline,
    PatchObject,
    Plan,
)
from ddpjob_operator.core.model import Deletion, Observed, Pod, Watched
from ddpjob_operator.core.records import object_of, pod_of, service_of
from ddpjob_operator.kube.engine import reconciler
from ddpjob_operator.scheduling.interface import Provider
from ddpjob_operator.scheduling.native_v1alpha2 import NativeV1Alpha2
from ddpjob_operator.scheduling.none import NO_PROVIDER
from simulation.api_server import DEFAULT_GRACE_SECONDS
from simulation.world import World

#: Of so many plans one is checked: each costs several.
ONE_IN = 8
MAX_ROUNDS = 8
#: Plans of one schedule: thousands of them mean that the operator asks again and again for what does not come.
MAX_PLANS = 8000


@contextmanager
def checked(world: World) -> Iterator[None]:
    """Have the reconciler's plans checked, for a while."""
    real = plan_module.plan
    num_plans = world.schedule.seed % ONE_IN

    def checking(observed: Observed, now: float, provider: Provider = NO_PROVIDER) -> Plan:
        nonlocal num_plans
        num_plans += 1
        if num_plans > MAX_PLANS:
            world.fail(f"{MAX_PLANS} plans for one job, and it has not ended: {observed.job.status.message}")
        made = real(observed, now, provider)
        if num_plans % ONE_IN == 0 and not observed.rejections:
            message = _why_not_settled(observed, made, now, provider)
            if message:
                world.fail(message)
        return made

    with patch.object(reconciler, "plan", checking):  # the name that it has imported
        yield


def _why_not_settled(seen: Observed, made: Plan, now: float, provider: Provider) -> str:
    """Empty if the plan comes to rest, else what it does instead."""
    done: list[Action] = []
    for _ in range(MAX_ROUNDS):
        twice = [action for number, action in enumerate(made.actions) if action in made.actions[:number]]
        if twice:
            return f"a plan asks twice for the same: {twice[0]}"
        if not made.actions and made.status == seen.job.status:
            return ""
        again = [action for action in made.actions if action in done]
        if again:
            return f"a plan asks again for what was done: {again[0]}"
        done += made.actions
        seen = _after(seen, made, now)
        if seen.job.deleting:
            return ""
        made = plan_module.plan(seen, now, provider)
    return f"a plan does not come to rest: {made.status.reason}, {made.status.message}, {made.actions}"


def _after(seen: Observed, made: Plan, now: float) -> Observed:
    """The state that the plan asks for."""
    after = replace(seen, job=replace(seen.job, status=made.status))
    for action in made.actions:
        after = _carried_out(after, action, now)
    return after


def _carried_out(seen: Observed, action: Action, now: float) -> Observed:
    match action:
        case CreatePod():
            return replace(seen, pods=(*seen.pods, pod_of(_created(action.body))))
        case CreateObject() if action.kind == NativeV1Alpha2.kind:
            group = object_of(Watched(kind=NativeV1Alpha2.kind), _created(action.body))
            return replace(seen, objects=(*seen.objects, group))
        case DeleteObject():
            objects = (replace(o, deleting=o.deleting or o.uid == action.uid) for o in seen.objects)
            return replace(seen, objects=tuple(objects))
        case CreateObject():
            return replace(seen, service=service_of(_created(action.body)))
        case PatchObject():
            return _patched(seen, action)
        case DeletePod():
            return replace(seen, pods=_without(seen, {action.uid}, action.grace_seconds, now))
        case DeletePods():
            uids = {pod.uid for pod in seen.pods if action.attempt in (None, pod.attempt)}
            return replace(seen, pods=_without(seen, uids, None, now))
        case LowerPodDeadline():
            pods = (replace(p, active_deadline_seconds=1) if p.uid == action.uid else p for p in seen.pods)
            return replace(seen, pods=tuple(pods))
        case DeleteJob():
            return replace(seen, job=replace(seen.job, deleting=True))
    raise AssertionError(f"an action that this model does not know: {action}")


def _patched(seen: Observed, action: PatchObject) -> Observed:
    assert seen.service is not None
    selector = {key: value for key, value in action.patch["spec"]["selector"].items() if value is not None}
    return replace(seen, service=replace(seen.service, selector=selector))


def _without(seen: Observed, uids: set[str], grace_seconds: int | None, now: float) -> tuple[Pod, ...]:
    """Pods without a node, or that have ended, go at once; every other is marked."""
    grace = DEFAULT_GRACE_SECONDS if grace_seconds is None else grace_seconds
    pods = []
    for pod in seen.pods:
        if pod.uid not in uids:
            pods.append(pod)
        elif pod.node is not None and not pod.all_ended and grace:
            pods.append(replace(pod, deletion=Deletion(deadline=now + grace)))
    return tuple(pods)


def _created(body: Any) -> dict[str, Any]:
    metadata = {**body["metadata"], "uid": f"new-{body['metadata']['name']}", "resourceVersion": "1"}
    return {**body, "metadata": metadata}
