"""Carries out the actions of a plan. Each action is right on its own, so a crash between any two leaves nothing wrong.

Names are deterministic and deletions carry a uid, so repeating an action is harmless. Neighbours of one kind run in
parallel, kinds in the plan's order; what pods need before they start (Service, NetworkPolicy, pod group) counts as one kind,
because none of it needs the others. A job has at most `MAX_PARALLEL` requests waiting for a turn, so that its thousands of
creations do not hold up another job; and namespaces share the turns, so that one with slow webhooks holds up no other.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby

from ddpjob_operator.api import names
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
    Removal,
    SetUp,
)
from ddpjob_operator.core.model import Body, Job, Kind, Rejection
from ddpjob_operator.kube.cache.store import Store
from ddpjob_operator.kube.engine.expectations import Expectations
from ddpjob_operator.kube.engine.rejections import Rejections, name_of
from ddpjob_operator.kube.fair_share import FairSlots
from ddpjob_operator.kube.keys import Key, key_of
from ddpjob_operator.kube.metrics import PODS_CREATED
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import (
    ApiError,
    ConflictError,
    NotFoundError,
    RejectedError,
    ThrottledError,
    UnavailableError,
)
from ddpjob_operator.transport.resources import DDPJOBS, PODS, Resource, of_job

#: What is requested; `_request` adds the kind of an object.
_REQUESTS: Mapping[type[Action], str] = {
    CreatePod: "create pod",
    CreateObject: "create",
    PatchObject: "update",
    DeleteObject: "delete",
    DeletePod: "delete pod",
    DeletePods: "delete the pods",
    LowerPodDeadline: "set activeDeadlineSeconds of pod",
    DeleteJob: "delete DDPJob",
}
#: Requests in flight for the jobs of one namespace, while no other has any; more than this only queues up in the API server.
MAX_PARALLEL = 32
#: The labels without which the caches do not take an object for one of a job.
_WATCHED_LABELS = (names.LABEL_JOB_UID, names.LABEL_JOB, names.LABEL_ATTEMPT, names.LABEL_RANK)
#: The admission plugin OwnerReferencesPermissionEnforcement reads the kinds of the API server now and then. For some seconds
#: after the CRD was installed it refuses `blockOwnerDeletion` of DDPJobs with this text.
_UNKNOWN_KIND = "cannot find RESTMapping"
#: How long such an answer is retried before it is reported.
UNKNOWN_KIND_SECONDS = 60.0


@dataclass(slots=True)
class _Outcomes:
    """The outcomes of actions of one kind."""

    num_done: int = 0
    refused: dict[str, Rejection] = field(default_factory=dict)
    errors: list[ApiError] = field(default_factory=list)
    is_decided: bool = False
    """Whether the server has refused one on purpose, or limits the rate of requests."""

    def add(self, action: Action, outcome: Rejection | ApiError | None) -> None:
        """Add the outcome of one action; None is success."""
        if isinstance(outcome, Rejection):
            self.refused[name_of(action)] = outcome
            self.is_decided |= not outcome.by_failure
        elif outcome is not None:
            self.errors.append(outcome)
            self.is_decided |= isinstance(outcome, ThrottledError)
        else:
            self.num_done += 1

    @property
    def forbid_more(self) -> bool:
        """Whether further creations would most likely fail in the same way.

        What the server refuses once (a quota, a policy) it refuses for all pods of a gang. A server that fails now and then
        (a webhook) is no reason to leave out the other pods, one that fails mostly is.
        """
        return self.is_decided or len(self.refused) + len(self.errors) > self.num_done


class Actuator:
    """Turns actions into requests."""

    def __init__(
        self,
        client: Client,
        store: Store,
        expectations: Expectations,
        rejections: Rejections,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._store = store
        self._expectations = expectations
        self._rejections = rejections
        self._slots = FairSlots(2 * MAX_PARALLEL)
        self._clock = clock
        #: When the API server first answered that it does not know the kind DDPJob yet; None after a creation.
        self._unknown_kind_since: float | None = None

    async def run(
        self, job: Job, actions: Sequence[Action], *, is_outdated: Callable[[], bool] = lambda: False
    ) -> None:
        """Run the actions in order.

        No further pods are created once the plan `is_outdated`: the job was edited or deleted, or a pod has ended.

        What the server refuses is recorded as a rejection. After a request that sets the gang up and was refused or has
        failed, the others are left for a later reconcile; one that stops or deletes something holds up nothing. Raises
        ApiError for everything that is worth another try.
        """
        key = key_of(job)
        errors: list[ApiError] = []
        for step, group in groupby(actions, _step_of):
            outcomes = _Outcomes()
            tried: list[Action] = []
            for batch in self._batches(key, list(group)):
                tried += batch
                await self._run_all(key, job, batch, outcomes, is_outdated)
                if outcomes.errors or outcomes.refused:
                    break
            self._rejections.record(key, tried, outcomes.refused, some_done=outcomes.num_done > 0)
            errors += outcomes.errors
            if issubclass(step[0], SetUp) and (outcomes.errors or outcomes.refused):
                break
        if errors:
            raise errors[0]

    def _batches(self, key: Key, actions: Sequence[Action]) -> Iterator[Sequence[Action]]:
        """The actions in batches: all at once; after a refused creation first one, then twice as many after each success.

        So a gang that is accepted starts as soon as it can, and one that a quota refuses costs one request for each retry
        instead of one for each pod (as in Kubernetes' Job controller). What refuses a gang most likely refuses the others of
        its namespace as well, so these begin with one pod, too. What was refused to be stopped or deleted is tried in the same
        way, the one first that was not tried for the longest time: some may be refused for good, and others not.
        """
        if isinstance(actions[0], Removal):
            refused = {name: number for number, name in enumerate(self._rejections.removals_of(key))}
            actions = sorted(actions, key=lambda action: refused.get(name_of(action), -1))
            is_doubtful = name_of(actions[0]) in refused
        else:
            is_doubtful = isinstance(actions[0], CreatePod) and self._rejections.are_in(key[0])
        first, size = 0, 1 if is_doubtful else len(actions)
        while first < len(actions):
            yield actions[first : first + size]
            first, size = first + size, 2 * size

    async def _run_all(
        self, key: Key, job: Job, actions: Sequence[Action], outcomes: _Outcomes, is_outdated: Callable[[], bool]
    ) -> None:
        """Run actions in parallel, a bounded number at a time; leave out the other creations once one is refused."""
        left = iter(actions)

        async def work() -> None:
            for action in left:
                async with self._slots.of(job.namespace):
                    if isinstance(action, CreatePod) and (outcomes.forbid_more or is_outdated()):
                        return
                    outcomes.add(action, await self._run_one(key, job, action))

        async with asyncio.TaskGroup() as workers:
            for _ in range(min(MAX_PARALLEL, len(actions))):
                workers.create_task(work())

    async def _run_one(self, key: Key, job: Job, action: Action) -> Rejection | ApiError | None:
        """The outcome of one action; None if it was carried out."""
        try:
            return await self._send(key, job, action)
        except RejectedError as error:
            if self._learns_the_kind(error):
                return ConflictError(_request(action), error.message, status=error.status)  # retried soon
            return Rejection(error.message, request=_request(action))
        except UnavailableError as error:
            if error.status == 500 and isinstance(action, SetUp):
                # For example a broken admission webhook: it may stay broken, and the user should read why.
                return Rejection(error.message, request=_request(action), by_failure=True)
            return error
        except ApiError as error:
            return error

    def _learns_the_kind(self, error: RejectedError) -> bool:
        """Whether the API server refuses owner references since it learns only in these seconds what a DDPJob is."""
        if _UNKNOWN_KIND not in error.message:
            return False
        if self._unknown_kind_since is None:
            self._unknown_kind_since = self._clock()
        return self._clock() - self._unknown_kind_since < UNKNOWN_KIND_SECONDS

    async def _send(self, key: Key, job: Job, action: Action) -> Rejection | None:
        match action:
            case CreatePod():
                return await self._create(key, job, PODS, action)
            case CreateObject():
                return await self._create(key, job, _resource(action.kind), action)
            case DeletePod():
                await self._delete_pod(key, action)
            case DeletePods():
                await self._delete_pods(key, job, action)
            case PatchObject():
                await self._patch(job.namespace, action)
            case DeleteObject():
                await self._delete_object(key, action)
            case LowerPodDeadline():
                await self._lower_deadline(job.namespace, action)
            case DeleteJob():
                await self._delete_job(job.namespace, action)
        return None

    async def _create(
        self, key: Key, job: Job, resource: Resource, action: CreatePod | CreateObject
    ) -> Rejection | None:
        body = action.body  # first: what cannot be rendered is not sent
        self._expectations.sent(key, action)
        try:
            await self._client.create(resource, job.namespace, body)
        except ConflictError:
            return await self._look_at_the_owner(key, job, resource, action)
        except UnavailableError:
            self._expectations.doubt(key, action)
            raise
        except ApiError:
            self._expectations.failed(key, action)
            raise
        self._unknown_kind_since = None
        if resource is PODS:
            PODS_CREATED.inc()
        return None

    async def _look_at_the_owner(
        self, key: Key, job: Job, resource: Resource, action: CreatePod | CreateObject
    ) -> Rejection | None:
        """Decide on a name that exists already: it is correct if the object belongs to the same job, whoever created it."""
        try:
            body = await self._client.get(resource, job.namespace, action.name)
        except NotFoundError as error:  # Another conflict than the name (a quota's), or the object is gone by now.
            self._expectations.failed(key, action)
            raise ConflictError(
                f"create {resource.plural} {action.name}", "the request conflicts with another one"
            ) from error
        owners = body["metadata"].get("ownerReferences") or []
        is_own, lost = any(owner["uid"] == job.uid for owner in owners), _lost_labels(action.body, body)
        if is_own and not lost:
            return None
        self._expectations.failed(key, action)
        if is_own:  # the watch will never show it
            found = f"it exists without its label {', '.join(lost)}"
            return Rejection(f"{found}: add the label again, or delete the object", request=_request(action))
        whose = ", ".join(f"{owner['kind']} {owner['name']} (uid {owner['uid']})" for owner in owners) or "no owner"
        # What an earlier job of this name owned goes by garbage collection, which may not have reached it yet.
        is_left_over = any((owner["kind"], owner["name"]) == (names.KIND, job.name) for owner in owners)
        if is_left_over or "deletionTimestamp" in body["metadata"]:
            return Rejection(_wait_for_deletion(body, action.name, whose), is_terminating=True)
        found = f"it exists and belongs to {whose}, not to this job"
        return Rejection(f"{found}: delete it, or rename this job", request=_request(action))

    async def _delete_pod(self, key: Key, action: DeletePod) -> None:
        self._expectations.sent(key, action)
        try:
            await self._client.delete(
                PODS,
                key[0],
                action.name,
                uid=action.uid,
                resource_version=action.resource_version,
                grace_seconds=action.grace_seconds,
            )
        except NotFoundError:
            return  # It is gone, which the watch will show.
        except ApiError as error:
            if isinstance(error, ConflictError) and not action.resource_version:
                return  # Another pod has its name by now.
            self._expectations.failed(key, action)
            raise

    async def _delete_pods(self, key: Key, job: Job, action: DeletePods) -> None:
        pods = [pod for pod in self._store.pods_of(job) if action.attempt in (None, pod.attempt)]
        expected = [DeletePod(name=pod.name, uid=pod.uid, grace_seconds=None) for pod in pods]
        for deletion in expected:
            self._expectations.sent(key, deletion)
        try:
            await self._client.delete_collection(PODS, key[0], of_job(job.uid, action.attempt))
        except ApiError:
            for deletion in expected:
                self._expectations.failed(key, deletion)
            raise

    async def _delete_object(self, key: Key, action: DeleteObject) -> None:
        self._expectations.sent(key, action)
        try:
            await self._client.delete(_resource(action.kind), key[0], action.name, uid=action.uid)
        except (NotFoundError, ConflictError):
            return  # It is gone, or another object has its name by now.
        except ApiError:
            self._expectations.failed(key, action)
            raise

    async def _patch(self, namespace: str, action: PatchObject) -> None:
        resource, cache = _resource(action.kind), self._store.cache_of(action.kind)
        metadata = dict(action.patch.get("metadata", {}))
        if action.resource_version:
            metadata["resourceVersion"] = action.resource_version
        patch = {**action.patch, "metadata": metadata}
        try:
            answer = await self._client.merge_patch(resource, namespace, action.name, patch)
        except ConflictError:  # Another client has changed it: decide again on its new version.
            cache.put_answer(await self._client.get(resource, namespace, action.name))
            raise
        cache.put_answer(answer)

    async def _lower_deadline(self, namespace: str, action: LowerPodDeadline) -> None:
        patch = {"metadata": {"uid": action.uid}, "spec": {"activeDeadlineSeconds": 1}}
        try:
            await self._client.merge_patch(PODS, namespace, action.name, patch)
        except (NotFoundError, ConflictError, RejectedError) as error:
            if isinstance(error, RejectedError) and error.status != 422:
                raise
            return  # Gone, another pod by now (422: its uid is immutable), or lowered already.

    async def _delete_job(self, namespace: str, action: DeleteJob) -> None:
        # A conflict is tried again, as no watch event may follow it. If another job has the name by now, the watch shows that.
        with suppress(NotFoundError):
            await self._client.delete(DDPJOBS, namespace, action.name, uid=action.uid, propagation="Background")


def _step_of(action: Action) -> tuple[type[Action], Kind | None]:
    """Neighbours of one step run in parallel: a job's start waits for one answer less for each kind that pods need before them."""
    return type(action), None if isinstance(action, CreateObject) else _kind_of(action)


def _kind_of(action: Action) -> Kind | None:
    return action.kind if isinstance(action, CreateObject | PatchObject | DeleteObject) else None


def _request(action: Action) -> str:
    """What is requested, to be read before the name of the object."""
    request = _REQUESTS[type(action)]
    kind = _kind_of(action)
    return request if kind is None else f"{request} {kind.kind}"


def _resource(kind: Kind) -> Resource:
    return Resource.of_version(kind.api_version, kind.plural)


def _lost_labels(wanted: Body, found: Body) -> list[str]:
    """The labels by which the watches recognise an object and that this one does not have, or not with this value."""
    own, left = (body["metadata"].get("labels") or {} for body in (wanted, found))
    return [f"{name}={own[name]}" for name in _WATCHED_LABELS if name in own and left.get(name) != own[name]]


def _wait_for_deletion(body: Body, name: str, whose: str) -> str:
    """The message that names the object to wait for, and what to do if its node is off and never confirms the deletion."""
    node = body.get("spec", {}).get("nodeName")
    if node is None:
        return f"waiting until {name} of {whose} is deleted"
    return (
        f"waiting until pod {name} of {whose} is deleted on node {node}; if that node is off, taint it with"
        " node.kubernetes.io/out-of-service"
    )
