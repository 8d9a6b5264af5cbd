"""Writes a job's status: only what changed, only when it changed, and what merely ticks at most every ten seconds.

The answer to a write goes into the store, so the next pass compares with what was written and not with a cache that is
late. That is also why an operator that restarts writes nothing.

Every write is for the version that was seen. The uid would not do as a precondition: the API server ignores it on the
status of custom resources (seen on 1.36), and a job that was deleted and applied again must not inherit a status.
"""

import time
from collections.abc import Mapping
from typing import Any

from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.kube.client import Client
from ddpjob_operator.kube.errors import ConflictError
from ddpjob_operator.kube.metrics import STATUS_WRITES
from ddpjob_operator.kube.resources import DDPJOBS
from ddpjob_operator.kube.store import KnownJob, Store
from ddpjob_operator.kube.workqueue import Key

#: Least time between two writes of a job that change nothing but `progress` and `ready`. Other writes take both along.
TICK_SECONDS = 10.0
#: Least time from any write of a job to one that changes its messages too, and nothing else: they count pods, and each
#: write would delay what those pods wait for.
WORDS_SECONDS = 1.0


class StatusWriter:
    """Makes one patch a pass at most."""

    def __init__(self, client: Client, store: Store) -> None:
        self._client = client
        self._store = store
        self._written_at: dict[Key, float] = {}
        self._ticked_at: dict[Key, float] = {}

    async def write(self, known: KnownJob, wanted: DDPJobStatus) -> float | None:
        """Make the job show the wanted status, if it still is the version that was seen.

        Gives the seconds until a pending tick may be written, None if nothing is pending.
        Raises ConflictError if it is not; NotFoundError if the job is gone; ApiError for what is worth another try.
        """
        job = known.job
        key = (job.namespace, job.name)
        if wanted == job.status:
            return None
        tick = _only_ticks(job.status, wanted)
        if (wait_seconds := self._seconds_to_wait(key, job.status, wanted, tick=tick)) > 0:
            return wait_seconds
        patch = {
            "metadata": {"resourceVersion": job.resource_version},
            "status": merge_patch_between(known.status, as_json(wanted)),
        }
        try:
            answer = await self._client.merge_patch(DDPJOBS, job.namespace, job.name, patch, subresource="status")
        except ConflictError:
            self._store.jobs.put_answer(await self._client.get(DDPJOBS, job.namespace, job.name))
            raise
        STATUS_WRITES.labels("tick" if tick else "change").inc()
        self._written_at[key] = time.monotonic()
        if tick:
            self._ticked_at[key] = time.monotonic()
        self._store.jobs.put_answer(answer)
        return None

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._written_at.pop(key, None)
        self._ticked_at.pop(key, None)

    def _seconds_to_wait(self, key: Key, old: DDPJobStatus, new: DDPJobStatus, *, tick: bool) -> float:
        if tick:
            return self._ticked_at.get(key, 0.0) + TICK_SECONDS - time.monotonic()
        if _without_words(old) == _without_words(new):
            return self._written_at.get(key, 0.0) + WORDS_SECONDS - time.monotonic()
        return 0.0


def as_json(status: DDPJobStatus) -> dict[str, Any]:
    """The status as it stands in the API: what is None is absent."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


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


def _only_ticks(old: DDPJobStatus, new: DDPJobStatus) -> bool:
    return new.model_copy(update={"progress": old.progress, "ready": old.ready}) == old


def _without_words(status: DDPJobStatus) -> DDPJobStatus:
    conditions = [condition.model_copy(update={"message": ""}) for condition in status.conditions]
    return status.model_copy(update={"progress": None, "ready": None, "message": None, "conditions": conditions})
