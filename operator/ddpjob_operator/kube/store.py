"""All that is known of the cluster, by job.

Three caches: DDPJobs, fed by kopf's events, the audit and the answers to our own status writes; pods and Services, each
fed by an informer. A status that was written is thus known at once, and a late event from before it changes nothing.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ddpjob_operator.core.model import Body, Job, Pod, Service
from ddpjob_operator.core.observed import job_of, pod_of, service_of
from ddpjob_operator.core.service import service_name
from ddpjob_operator.kube.cache import Cache
from ddpjob_operator.kube.resources import DDPJOBS, MANAGED, PODS, SERVICES
from ddpjob_operator.kube.workqueue import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJob:
    """A job, and its status as JSON to compare with before a write."""

    job: Job
    status: Mapping[str, Any]


class Store:
    """The caches and an index of pods by job."""

    def __init__(self, changed: Callable[[Key], None], vanished: Callable[[str, str], None]) -> None:
        """Empty.

        `changed` is called with the key of each job that needs another look, `vanished` with the namespace and the name
        of a pod or Service that is gone, whose name may have been in another job's way.
        """
        self._changed = changed
        self._vanished = vanished
        self._pods_by_job: dict[tuple[str, str], dict[str, Pod]] = {}
        self._keys: dict[tuple[str, str], Key] = {}
        self.jobs = Cache[KnownJob](DDPJOBS, "", _known_job, self._on_job)
        self.pods = Cache[Pod](PODS, MANAGED, _pod, self._on_pod)
        self.services = Cache[Service](SERVICES, MANAGED, _service, self._on_service)

    def job(self, key: Key) -> KnownJob | None:
        """The job of this name; None if there is none."""
        return self.jobs.get(*key)

    def pods_of(self, job: Job) -> Iterable[Pod]:
        """Its pods, of all attempts. A pod of another namespace is never one, whatever its labels say."""
        return self._pods_by_job.get((job.namespace, job.uid), {}).values()

    def service_of(self, job: Job) -> Service | None:
        """The Service of the job's name, if the operator has made it for some job."""
        return self.services.get(job.namespace, service_name(job.name))

    def _on_job(self, namespace: str, old: KnownJob | None, new: KnownJob | None) -> None:
        if old is not None:
            self._keys.pop((namespace, old.job.uid), None)
            self._changed((namespace, old.job.name))
        if new is not None:
            key = self._keys[namespace, new.job.uid] = (namespace, new.job.name)
            self._changed(key)

    def _on_pod(self, namespace: str, old: Pod | None, new: Pod | None) -> None:
        if old is not None:
            pods = self._pods_by_job[namespace, old.job_uid]
            pods.pop(old.name, None)
            if not pods:
                del self._pods_by_job[namespace, old.job_uid]
        if new is not None:
            self._pods_by_job.setdefault((namespace, new.job_uid), {})[new.name] = new
        self._touch(namespace, old, new)
        if old is not None and new is None:
            self._vanished(namespace, old.name)

    def _on_service(self, namespace: str, old: Service | None, new: Service | None) -> None:
        self._touch(namespace, old, new)
        if old is not None and new is None:
            self._vanished(namespace, old.name)

    def _touch(self, namespace: str, *records: Pod | Service | None) -> None:
        for uid in {record.job_uid for record in records if record is not None}:
            key = self._keys.get((namespace, uid))
            if key is not None:
                self._changed(key)


def _known_job(body: Body, old: KnownJob | None) -> KnownJob:  # noqa: ARG001 a cache gives every parser the old record
    return KnownJob(job=job_of(body), status=body.get("status") or {})


def _service(body: Body, old: Service | None) -> Service:  # noqa: ARG001 a cache gives every parser the old record
    return service_of(body)


def _pod(body: Body, old: Pod | None) -> Pod:
    """The record of a pod, which keeps when its main container's end was first seen."""
    pod = pod_of(body)
    if pod.exit is None:
        return pod
    seen = old.ended_seen if old is not None and old.ended_seen is not None else time.time()
    return replace(pod, ended_seen=seen)
