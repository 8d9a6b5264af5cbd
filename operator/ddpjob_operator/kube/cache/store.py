"""The known state of the cluster, by job.

DDPJobs have a cache that is fed by kopf's events, the audit and the answers to our own status writes; pods, Services and the
objects of the scheduling provider each have one that an informer feeds. A status that was written is thus known at once, and a late event from before it changes nothing.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ddpjob_operator.core.failure.cause import may_explain_a_failure
from ddpjob_operator.core.job_names import job_of_pod
from ddpjob_operator.core.model import (
    CLOCK_MARGIN_SECONDS,
    POD,
    SERVICE,
    AllOf,
    Body,
    Deletion,
    Job,
    Kind,
    OwnedObject,
    Pod,
    Service,
    Watched,
)
from ddpjob_operator.core.records import job_of, object_of, pod_of, service_of
from ddpjob_operator.core.render.service import service_name
from ddpjob_operator.kube.cache.cache import Cache
from ddpjob_operator.kube.keys import Key
from ddpjob_operator.transport.resources import DDPJOBS, MANAGED, PODS, SERVICES, Resource

#: The explanations of queued jobs read all Workloads of a cluster, which took 14 ms with 5,000 of them, for each job.
INDEX_SECONDS = 1.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJob:
    """A job, and its status as JSON to compare with before a write."""

    job: Job
    status: Mapping[str, Any]
    leaves_its_pods: bool = False
    """Whether it is being deleted so that its children stay (`kubectl delete --cascade=orphan`)."""


@dataclass(frozen=True, slots=True)
class _Index:
    value: Any
    num_changes: int
    """How many objects had changed when it was built."""
    built_at: float


class Changed(Protocol):
    """Called for each job to reconcile; `first` if it was created, edited or deleted, or if a pod of it ended."""

    def __call__(self, key: Key, *, first: bool) -> None:
        """Reconcile this job soon."""


class Store:
    """The caches and an index of pods by job."""

    def __init__(self, changed: Changed, vanished: Callable[[str, str], None]) -> None:
        """Empty.

        `changed` is called for each job to reconcile, `vanished` with the namespace and the name of a pod or Service that
        is gone, which may have occupied a name that another job needs.
        """
        self._changed = changed
        self._vanished = vanished
        self._pods_by_job: dict[tuple[str, str], dict[str, Pod]] = {}
        self._vanished_pods: dict[tuple[str, str], dict[str, Pod]] = {}
        self._keys: dict[tuple[str, str], Key] = {}
        self._objects_by_job: dict[Key, dict[tuple[Kind, str], OwnedObject]] = {}
        self._orphaned: dict[Key, set[str]] = {}
        self._orphans_of: dict[tuple[str, str], Key] = {}
        self._held: dict[Key, set[str]] = {}
        self._indexes: dict[Callable[[AllOf], Any], _Index] = {}
        self._num_changes = 0
        self.jobs = Cache[KnownJob](DDPJOBS, "", _known_job, self._on_job)
        self.pods = Cache[Pod](PODS, MANAGED, self._pod, self._on_pod)
        self.services = Cache[Service](SERVICES, MANAGED, _service, self._on_service)
        self.objects: dict[Kind, Cache[OwnedObject]] = {}

    def watch(self, watched: Watched) -> Cache[OwnedObject]:
        """Add a cache for another kind of objects, which an informer then feeds."""

        def parse(body: Body, old: OwnedObject | None) -> OwnedObject:  # noqa: ARG001 a cache gives every parser the old record
            return object_of(watched, body)

        resource = Resource.of_version(watched.kind.api_version, watched.kind.plural)
        cache = self.objects[watched.kind] = Cache[OwnedObject](resource, watched.labels, parse, self._on_object)
        return cache

    @property
    def of_jobs(self) -> tuple[Cache[Any], ...]:
        """The caches of what belongs to jobs."""
        return (self.pods, self.services, *self.objects.values())

    def cache_of(self, kind: Kind) -> Cache[Any]:
        """The cache of this kind of objects, which is watched."""
        known: dict[Kind, Cache[Any]] = {POD: self.pods, SERVICE: self.services, **self.objects}
        return known[kind]

    def job(self, key: Key) -> KnownJob | None:
        """The job of this name; None if there is none."""
        return self.jobs.get(*key)

    def keys(self) -> frozenset[Key]:
        """All jobs that a leader has to reconcile once: those that exist, and those of which something is left."""
        known = {(known.job.namespace, known.job.name) for known in self.jobs.records()}
        return frozenset(known | self._orphaned.keys() | self._held.keys())

    def pods_of(self, job: Job) -> Iterable[Pod]:
        """Its pods, of all attempts. A pod of another namespace is never one, whatever its labels are."""
        return self._pods_by_job.get((job.namespace, job.uid), {}).values()

    def orphaned(self, key: Key) -> frozenset[str]:
        """The uids of the deleted jobs of this name of which pods are left."""
        return frozenset(self._orphaned.get(key, ()))

    def held_by_group(self, key: Key) -> Mapping[str, tuple[Pod, ...]]:
        """By uid of each deleted job of this name: its pods, if a pod group keeps one that is being deleted."""
        return {uid: tuple(self._pods_by_job.get((key[0], uid), {}).values()) for uid in tuple(self._held.get(key, ()))}

    def vanished_pods_of(self, job: Job) -> Iterable[Pod]:
        """The last records of its pods that no longer exist, as long as a decision may need them."""
        return self._vanished_pods.get((job.namespace, job.uid), {}).values()

    def service_of(self, job: Job) -> Service | None:
        """The Service of the job's name, if the operator has made it for some job."""
        return self.services.get(job.namespace, service_name(job.name))

    def all_of(self, kind: Kind) -> Iterable[OwnedObject]:
        """All objects of a kind that is watched for the scheduling provider."""
        return self.objects[kind].records() if kind in self.objects else ()

    def index(self, build: Callable[[AllOf], Any]) -> Any:
        """What `build` makes of all objects: after a change computed again, but at most once in INDEX_SECONDS."""
        known, now = self._indexes.get(build), time.monotonic()
        if known is None or (known.num_changes != self._num_changes and now - known.built_at >= INDEX_SECONDS):
            known = self._indexes[build] = _Index(build(self.all_of), self._num_changes, now)
        return known.value

    def objects_of(self, job: Job) -> tuple[OwnedObject, ...]:
        """The other objects that are about the job; none that an earlier job of its name controls."""
        found = self._objects_by_job.get((job.namespace, job.name), {}).values()
        return tuple(record for record in found if record.job_uid in ("", job.uid))

    def forget_orphaned(self, key: Key, uid: str) -> None:
        """The pods of this deleted job are being deleted."""
        self._orphans_of.pop((key[0], uid), None)
        left = self._orphaned.get(key, set())
        left.discard(uid)
        if not left:
            self._orphaned.pop(key, None)

    def forget_held_by_group(self, key: Key, uid: str) -> None:
        """The groups of this deleted job are closed."""
        left = self._held.get(key, set())
        left.discard(uid)
        if not left:
            self._held.pop(key, None)

    def _on_job(self, namespace: str, old: KnownJob | None, new: KnownJob | None) -> None:
        if old is not None:
            self._keys.pop((namespace, old.job.uid), None)
            self._changed((namespace, old.job.name), first=new is None)
            gone = new is None or new.job.uid != old.job.uid
            if gone:
                self._vanished_pods.pop((namespace, old.job.uid), None)
                for pod in self.pods_of(old.job):
                    self._look_for_group(namespace, pod)
            if gone and not old.leaves_its_pods and any(p.deletion is None for p in self.pods_of(old.job)):
                self._orphaned.setdefault((namespace, old.job.name), set()).add(old.job.uid)
                self._orphans_of[namespace, old.job.uid] = (namespace, old.job.name)
        if new is not None:
            key = self._keys[namespace, new.job.uid] = (namespace, new.job.name)
            self._drop_last_records(namespace, new.job)
            self._changed(key, first=old is None or old.job.generation != new.job.generation)

    def _pod(self, body: Body, old: Pod | None) -> Pod:
        """The record of a pod, which keeps when this process first saw its main container's end and its deletion."""
        pod = pod_of(body, old)
        if pod.exit is not None:
            known = old.exit.seen if old is not None and old.exit is not None else None
            pod = replace(pod, exit=replace(pod.exit, seen=known or time.time()))
        if old is not None and old.exit is not None:
            # What the cluster does to a pod whose program has ended (a drain, an eviction, a taint) has not ended the program.
            pod = replace(pod, disruption=old.disruption, reason=old.reason, message=old.message)
        if pod.deletion is None:
            return pod
        return replace(pod, deletion=self._deletion(body["metadata"], pod, pod.deletion, old))

    def _deletion(self, metadata: Body, pod: Pod, deletion: Deletion, old: Pod | None) -> Deletion:
        """The deletion with what earlier versions of the pod showed of it. A later request may shorten the grace.

        The pod keeps its whole grace, counted from when this process saw the request. A process that has just started
        waits at most CLOCK_MARGIN_SECONDS longer than the API server says.
        """
        known = old.deletion if old is not None else None
        if known is not None and known.timestamp == deletion.timestamp:
            return known
        assert deletion.timestamp is not None, "the API server has set it"
        grace_seconds = metadata.get("deletionGracePeriodSeconds") or 0
        deadline = min(time.time() + grace_seconds, deletion.timestamp + CLOCK_MARGIN_SECONDS)
        if known is not None:
            return replace(known, deadline=deadline, timestamp=deletion.timestamp)
        return replace(
            deletion,
            deadline=deadline,
            after_exit=old is not None and old.exit is not None,
            seen_while_current=time.time() if self._is_current(metadata["namespace"], pod) else None,
        )

    def _is_current(self, namespace: str, pod: Pod) -> bool:
        """Whether the pod's job is in the pod's attempt."""
        key = self._keys.get((namespace, pod.job_uid))
        known = self.jobs.get(*key) if key is not None else None
        return known is not None and known.job.status.attempt == pod.attempt

    def _on_pod(self, namespace: str, old: Pod | None, new: Pod | None) -> None:
        if old is not None:
            pods = self._pods_by_job[namespace, old.job_uid]
            pods.pop(old.name, None)
            if not pods:
                del self._pods_by_job[namespace, old.job_uid]
            if not pods and (new is None or new.job_uid != old.job_uid):
                if key := self._orphans_of.get((namespace, old.job_uid)):
                    self.forget_orphaned(key, old.job_uid)
                self.forget_held_by_group((namespace, job_of_pod(old.name)), old.job_uid)
        if new is not None:
            self._pods_by_job.setdefault((namespace, new.job_uid), {})[new.name] = new
            self._look_for_group(namespace, new)
        ended = new is None or (new.exit is not None and (old is None or old.exit is None))
        self._touch(namespace, old, new, first=ended)
        if old is not None and new is None:
            self._keep_last_record(namespace, old)
            self._vanished(namespace, old.name)

    def _look_for_group(self, namespace: str, pod: Pod) -> None:
        """Note a pod that is being deleted with its job, but that a pod group keeps until somebody closes the group."""
        member = pod.membership
        if member is None or not member.is_held or pod.deletion is None or (namespace, pod.job_uid) in self._keys:
            return
        key = (namespace, job_of_pod(pod.name))
        self._held.setdefault(key, set()).add(pod.job_uid)
        self._changed(key, first=False)

    def _keep_last_record(self, namespace: str, pod: Pod) -> None:
        """A kubelet reports how a deleted pod ended and removes it within milliseconds; a reconcile may see neither."""
        key = self._keys.get((namespace, pod.job_uid))
        known = self.jobs.get(*key) if key is not None else None
        if known is not None and may_explain_a_failure(known.job.status, pod.attempt):
            self._vanished_pods.setdefault((namespace, pod.job_uid), {})[pod.name] = pod

    def _drop_last_records(self, namespace: str, job: Job) -> None:
        """Drop records that explain no failure any more: a gang of a thousand ranks leaves as many at each restart."""
        kept = self._vanished_pods.pop((namespace, job.uid), {})
        if kept := {name: pod for name, pod in kept.items() if may_explain_a_failure(job.status, pod.attempt)}:
            self._vanished_pods[namespace, job.uid] = kept

    def _on_service(self, namespace: str, old: Service | None, new: Service | None) -> None:
        self._touch(namespace, old, new, first=False)
        if old is not None and new is None:
            self._vanished(namespace, old.name)

    def _on_object(self, namespace: str, old: OwnedObject | None, new: OwnedObject | None) -> None:
        self._num_changes += 1
        if old is not None:
            objects = self._objects_by_job[namespace, old.job_name]
            del objects[old.kind, old.name]
            if not objects:
                del self._objects_by_job[namespace, old.job_name]
        if new is not None:
            self._objects_by_job.setdefault((namespace, new.job_name), {})[new.kind, new.name] = new
        for job_name in {record.job_name for record in (old, new) if record is not None}:
            if self.job((namespace, job_name)) is not None:
                self._changed((namespace, job_name), first=False)
        if old is not None and new is None:
            self._vanished(namespace, old.name)

    def _touch(self, namespace: str, *records: Pod | Service | None, first: bool) -> None:
        for uid in {record.job_uid for record in records if record is not None}:
            key = self._keys.get((namespace, uid))
            if key is not None:
                self._changed(key, first=first)


def _known_job(body: Body, old: KnownJob | None) -> KnownJob:
    try:
        job = job_of(body, old.job if old else None)
    except (ValueError, KeyError, TypeError):
        if old is None:
            raise
        # If it counted as deleted, its pods would be deleted, too.
        logger.exception("DDPJob %s/%s cannot be read as it is now", old.job.namespace, old.job.name)
        return old
    leaves = "orphan" in (body["metadata"].get("finalizers") or ()) or (old is not None and old.leaves_its_pods)
    return KnownJob(job=job, status=body.get("status") or {}, leaves_its_pods=leaves)


def _service(body: Body, old: Service | None) -> Service:  # noqa: ARG001 a cache gives every parser the old record
    return service_of(body)
