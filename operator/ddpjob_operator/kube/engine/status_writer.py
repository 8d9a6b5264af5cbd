"""Writes a job's status: only what changed and only when it changed.

Details are written at most once a second, what merely ticks at most every ten seconds, and how many pods of a gang that
starts without trouble run already at most every twenty. Reports of good starts are few at a time.

The answer to a write goes into the store, so the next reconcile compares with what was written and not with a cache that is
late. That is also why an operator that restarts writes nothing.

Every write is for the version that was seen. The uid would not do as a precondition: the API server ignores it on the
status of custom resources (seen on 1.36), and a job that was deleted and applied again must not inherit a status.
"""

import logging
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from ddpjob_operator.api.names import Phase, Reason
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.measurements import measurements_between
from ddpjob_operator.core.model import Job
from ddpjob_operator.core.stored_status import field_paths
from ddpjob_operator.kube.cache.store import KnownJob, Store
from ddpjob_operator.kube.engine.event_recorder import EventRecorder
from ddpjob_operator.kube.engine.job_memory import JobMemories, JobMemory, WriteInDoubt
from ddpjob_operator.kube.fair_share import FairSlots
from ddpjob_operator.kube.keys import Key, about, key_of
from ddpjob_operator.kube.metrics import STATUS_WRITES, record
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ConflictError, UnavailableError
from ddpjob_operator.transport.resources import DDPJOBS

logger = logging.getLogger(__name__)

_OLDER_TYPE = (
    "the API server drops fields of the status, since the DDPJob type that it serves is older than this operator: %s. The operator"
    " forgets what they hold, so that counters of restarts may begin again. Apply the CRD of this release (helm upgrade with"
    " crds.enabled=true, or kubectl apply --server-side --force-conflicts -f manifests/crd/ddpjob.yaml), then restart the operator"
)

#: Least time between two writes of a job that change nothing but these. Other writes take them along.
TICK_SECONDS = 10.0
_TICKS = ("progress", "ready", "ready_replicas", "replicas", "selector", "time", "checkpoint_time")
#: Least time to a write that changes nothing but details of how far the start has come, from the last write of the job or
#: from the creation of its pods. A gang passes through them within a second, and each write costs the API server about as
#: much as three pods (its profile in a storm, divided by their numbers: hack/bench/README.md).
DETAILS_SECONDS = 1.0
#: Least time to a write that changes nothing but the number of pods that exist, have a node or run, from the last write of
#: the job. A gang that starts within this time costs four writes from its creation to its end: created, scheduled, running,
#: succeeded.
START_SECONDS = 20.0
#: Writes in flight, for one namespace, that only report how far a good start has come. In a storm of jobs as many as there are
#: workers would hold up the pods themselves: the API server showed new pods 4 s late to all who watch them (200 jobs with 4 pods each,
#: two cores), with 2 at once 1 s.
MAX_PARALLEL_STARTS = 2
_GOOD_STARTS = (Reason.CREATING, Reason.STARTING)


class StatusWriter:
    """Makes at most one patch per reconcile."""

    def __init__(self, client: Client, store: Store, events: EventRecorder, memories: JobMemories) -> None:
        """`events` records every change of a status that was written."""
        self._client = client
        self._store = store
        self._events = events
        self._start_slots = FairSlots(2 * MAX_PARALLEL_STARTS)
        self._memories = memories
        #: Fields of a status that the API server has dropped, as paths: an older CRD does not have them.
        self.dropped_fields: frozenset[str] = frozenset()

    async def write(self, known: KnownJob, wanted: DDPJobStatus, *, just_created: bool = False) -> float | None:
        """Make the job show the wanted status, if it still is the version that was seen.

        `just_created`: pods were created since, so the next reconcile will know more; details can wait for it.
        Returns the seconds until a pending tick may be written, None if nothing is pending.
        Raises ConflictError if it is not; NotFoundError if the job is gone; ApiError for what is worth another try.
        """
        job = known.job
        memory = self._memories.of_job(job)
        if wanted == job.status:
            return None
        tick = _only_counts_change(job.status, wanted)
        if (wait_seconds := _seconds_to_wait(memory, job.status, wanted, tick, just_created)) > 0:
            return wait_seconds
        status = wanted.as_json()
        patch = {
            "metadata": {"resourceVersion": job.resource_version},
            "status": merge_patch_between(known.status, status),
        }
        is_urgent = not _only_starts(job.status, wanted)
        try:
            async with nullcontext() if is_urgent else self._start_slots.of(job.namespace):
                answer = await self._client.merge_patch(DDPJOBS, job.namespace, job.name, patch, subresource="status")
        except ConflictError:
            memory.in_doubt = WriteInDoubt()
            await self.settle(key_of(job))
            raise
        except UnavailableError:
            memory.in_doubt = WriteInDoubt(job=job, status=wanted)
            raise
        STATUS_WRITES.labels("tick" if tick else "change").inc()
        memory.written_at = time.monotonic()
        if tick:
            memory.ticked_at = time.monotonic()
        self._look_for_dropped_fields(status, answer.get("status") or {})
        self._store.jobs.put_answer(answer)
        self._record(job, wanted)
        return None

    async def settle(self, key: Key) -> None:
        """Read the job past the caches if it is not known whether, or over what, its status was written last.

        Raises NotFoundError if the job is gone, ApiError if it cannot be read.
        """
        memory = self._memories.of(key)
        if memory.in_doubt is None:
            return
        self._store.jobs.put_answer(await self._client.get(DDPJOBS, *key))
        tried, known, memory.in_doubt = memory.in_doubt, self._store.job(key), None
        if tried.job is None or tried.status is None or known is None:
            return
        if (known.job.uid, known.job.status) == (tried.job.uid, tried.status):
            self._record(tried.job, tried.status)  # The write succeeded although its answer was lost.

    def begun_attempt(self, job: Job) -> int | None:
        """The attempt of the job that this process began last; None if it began none."""
        return self._memories.of_job(job).begun_attempt

    def _look_for_dropped_fields(self, written: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
        """Compare the answer to a write with what was written: the API server removes fields that the CRD does not have silently."""
        paths = field_paths(written)
        dropped = (self.dropped_fields - paths) | (paths - field_paths(stored))
        if dropped - self.dropped_fields:
            logger.warning(_OLDER_TYPE, ", ".join(sorted(dropped)))
        self.dropped_fields = dropped

    def _record(self, job: Job, written: DDPJobStatus) -> None:
        """Record what happened between the status that was seen and the one that was written, once for each write."""
        record(measurements_between(job.status, written))
        if job.status.attempt != written.attempt:
            self._memories.of_job(job).begun_attempt = written.attempt
        if (job.status.phase, job.status.reason, job.status.attempt) != (
            written.phase,
            written.reason,
            written.attempt,
        ):
            key = key_of(job)
            fields = about(key, attempt=written.attempt, reason=written.reason)
            logger.info("%s/%s: %s: %s", *key, written.phase, written.message, extra=fields)
        self._events.record(job, job.status, written)


def _seconds_to_wait(memory: JobMemory, old: DDPJobStatus, new: DDPJobStatus, tick: bool, just_created: bool) -> float:
    if tick:
        return memory.ticked_at + TICK_SECONDS - time.monotonic()
    if _without(_DETAILS, old) != _without(_DETAILS, new):
        return 0.0
    since = time.monotonic() if just_created else memory.written_at
    only_counts = new.reason in _GOOD_STARTS and _without(_COUNTS, old) == _without(_COUNTS, new)
    return since + (START_SECONDS if only_counts else DETAILS_SECONDS) - time.monotonic()


def merge_patch_between(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch (RFC 7386) that turns `old` into `new`: null removes, lists are replaced whole."""
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        former = old.get(key)
        if isinstance(value, Mapping) and isinstance(former, Mapping):
            if inner := merge_patch_between(former, value):
                patch[key] = inner
        elif key not in old or former != value:
            patch[key] = value
    return patch


def _only_counts_change(old: DDPJobStatus, new: DDPJobStatus) -> bool:
    return new.model_copy(update={field: getattr(old, field) for field in _TICKS}) == old


def _only_starts(old: DDPJobStatus, new: DDPJobStatus) -> bool:
    """Whether nothing is new but how far a start without trouble has come: no attempt and no failure."""
    rest = [_without(_DETAILS, status).model_copy(update={"conditions": []}) for status in (old, new)]
    return new.reason in _GOOD_STARTS and rest[0] == rest[1]


def _without(fields: Mapping[str, Any], status: DDPJobStatus) -> DDPJobStatus:
    """The status without these fields, and without the reasons and messages of conditions, which repeat the status' own.

    Without details, what is left is worth a write of its own: attempts, failures, phases, conditions that turn.
    """
    conditions = [condition.model_copy(update={"reason": "", "message": ""}) for condition in status.conditions]
    return status.model_copy(update={**fields, "phase": status.phase or Phase.PENDING, "conditions": conditions})


_COUNTS = {**dict.fromkeys(_TICKS), "message": None}
_DETAILS = {
    **_COUNTS,
    "reason": None,
    "image": None,
    "observed_generation": 0,
    "start_time": None,
    "attempt_start_time": None,
    "queued_since": None,
    "retry_time": None,
    "scheduled_time": None,
    "scheduling": None,
}
