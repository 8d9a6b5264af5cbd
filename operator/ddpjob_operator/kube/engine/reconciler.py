"""Reconciles one job: collect what is known, let `plan` decide, act, write the status, schedule the next reconcile."""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from ddpjob_operator.api.names import ConditionType
from ddpjob_operator.core.actions import Plan
from ddpjob_operator.core.defect import after_defect
from ddpjob_operator.core.gang import is_current, rank0_of
from ddpjob_operator.core.model import Job, Observed, Rejection
from ddpjob_operator.core.plan import plan
from ddpjob_operator.kube.cache.store import KnownJob, Store
from ddpjob_operator.kube.engine.actuator import Actuator
from ddpjob_operator.kube.engine.expectations import Expectations
from ddpjob_operator.kube.engine.job_memory import JobMemories
from ddpjob_operator.kube.engine.rejections import Rejections
from ddpjob_operator.kube.engine.status_writer import StatusWriter
from ddpjob_operator.kube.engine.workqueue import WorkQueue
from ddpjob_operator.kube.keys import Key, about, key_of
from ddpjob_operator.kube.lookups.lookups import Lookups
from ddpjob_operator.kube.lookups.node_reader import NodeState
from ddpjob_operator.kube.lookups.progress_reader import ProgressReader
from ddpjob_operator.kube.metrics import EXPECTATIONS_OVERDUE, RECONCILE_SECONDS, RECONCILES
from ddpjob_operator.scheduling.interface import Provider
from ddpjob_operator.scheduling.none import NO_PROVIDER
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import (
    ApiError,
    ConflictError,
    NotFoundError,
    NotSentError,
    RejectedError,
    ThrottledError,
)
from ddpjob_operator.transport.resources import MANAGED, PODS, of_job

logger = logging.getLogger(__name__)

#: The time between two tries to close the pod group of a deleted job. A webhook that restarts refuses patches for about so long.
CLOSE_AGAIN_SECONDS = 10.0
#: The time between two tries to write while this process does not hold the Lease; no request is sent for them.
NOT_SENT_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciler:
    """Takes keys from the queue and moves each job one step forward."""

    client: Client
    queue: WorkQueue
    store: Store
    memories: JobMemories
    expectations: Expectations
    rejections: Rejections
    actuator: Actuator
    status_writer: StatusWriter
    lookups: Lookups
    progress: ProgressReader
    trainer_image: str
    provider: Provider = NO_PROVIDER
    other_providers: Mapping[str, Provider] = field(default_factory=dict)
    """By namespace, where it is another one, since the rights of this operator differ."""
    makes_network_policies: bool = False

    async def work(self) -> None:
        """Handle one key after another, until cancelled. A failed reconcile is retried, later each time."""
        while True:
            key = await self.queue.get()
            try:
                with RECONCILE_SECONDS.time():
                    result = await self._reconcile_or_retry(key)
                RECONCILES.labels(result).inc()
            finally:
                self.queue.done(key)
            # The other parts of the process get their turn: a reconcile that sends nothing never suspends, and neither does the
            # queue while keys wait. After a start that is every job, and the Lease would not be renewed meanwhile.
            await asyncio.sleep(0)

    async def _reconcile_or_retry(self, key: Key) -> str:
        try:
            await self.reconcile(key)
        except (NotFoundError, ConflictError) as error:  # the caches show something that is gone, or an earlier version
            self.queue.retry(key)
            logger.info("%s/%s: %s", *key, error, extra=about(key))
            return "conflict"
        except ThrottledError as error:
            self.queue.retry(key, error.retry_after_seconds)
            return "throttled"
        except (
            NotSentError
        ):  # without a back-off, which would hold up the job for half a minute after the Lease is held again
            self.queue.add_after(key, NOT_SENT_SECONDS)
            return "failed"
        except ApiError as error:
            delay = self.queue.retry(key)
            logger.warning("%s/%s: reconcile failed, retrying in %.1f s: %s", *key, delay, error, extra=about(key))
            return "failed"
        except Exception:  # one job must never stop the others, and none is ever lost
            delay = self.queue.retry(key)
            message = "%s/%s: reconcile failed by a defect of the operator; retrying in %.1f s"
            logger.exception(message, *key, delay, extra=about(key))
            return "defect"
        self.queue.reset_back_off(key)
        return "done"

    async def reconcile(self, key: Key) -> None:
        """Reconcile one job. Raises ApiError for what is worth another try."""
        await self._delete_orphans(key)
        is_closed = await self._close_groups_of_deleted_jobs(key)
        known = self.store.job(key)
        if known is None or self.memories.is_of_another(known.job):
            self._forget(key)
        if not is_closed:
            self.queue.add_after(key, CLOSE_AGAIN_SECONDS)
        if known is None or known.job.is_managed_elsewhere:
            return
        uid = self.memories.of_job(known.job).uid
        await self.status_writer.settle(key)
        known = self.store.job(key)
        if known is None or known.job.uid != uid:  # it went meanwhile, and its key has been added for that
            return
        observed = self._observe(key, known)
        self.expectations.settle(key, observed)
        if self._is_overdue(key) or _never_seen(observed, self.expectations.created(key)):
            await self._look_up(key, known)
            observed = self._observe(key, known)
        now = time.time()
        try:
            planned = plan(observed, now, self._provider(key))
        except Exception as error:  # `work` logs it and tries again
            await self._report_defect(known, observed, error)
            raise
        self.lookups.update(observed, planned.lookups)
        self.progress.follow(observed)
        if planned.write_ahead:
            assert not planned.actions, "a plan that writes ahead acts in the next reconcile"
            await self.status_writer.write(known, planned.status)
            self.queue.add(key, first=True)
            return
        await self._carry_out(key, known, observed, planned, now)

    async def _carry_out(self, key: Key, known: KnownJob, observed: Observed, planned: Plan, now: float) -> None:
        error: ApiError | None = None
        shown = self._refusals(key)
        self.rejections.keep_wanted(key, planned.actions)
        actions = self.rejections.due(key, self.expectations.open_actions(key, planned.actions))
        try:
            await self.actuator.run(known.job, actions, is_outdated=lambda: self.queue.is_urgent(key))
        except ApiError as caught:
            error = caught  # The status is true all the same, and the user should see it.
        except Exception as caught:  # pods are rendered as late as this
            await self._report_defect(known, observed, caught)
            raise
        if self._refusals(key) != shown:
            self.queue.add(key)
        # What was created and has not shown makes the status old news: a busy API server shows it seconds later.
        just_created = error is None and bool(self.expectations.created(key))
        pending_seconds = await self.status_writer.write(known, planned.status, just_created=just_created)
        if error is not None:
            raise error
        self._look_again(key, planned, now, pending_seconds)

    async def _report_defect(self, known: KnownJob, observed: Observed, error: Exception) -> None:
        """Show in the status that the operator fails on the job; a later attempt does if the API server does not accept it now."""
        with suppress(ApiError):
            await self.status_writer.write(known, after_defect(observed, error, time.time()))

    def _provider(self, key: Key) -> Provider:
        return self.other_providers.get(key[0], self.provider)

    def _refusals(self, key: Key) -> tuple[Mapping[str, Rejection], ...]:
        return dict(self.rejections.of(key)), dict(self.rejections.removals_of(key))

    def _look_again(self, key: Key, planned: Plan, now: float, pending_seconds: float | None) -> None:
        """Schedule a reconcile for the time at which something changes without an event."""
        delays = [
            pending_seconds,
            None if planned.wake_at is None else planned.wake_at - now,
            self.expectations.seconds_left(key),
            self.rejections.seconds_to_retry(key) or None,
        ]
        given = [delay for delay in delays if delay is not None]
        if given:
            self.queue.add_after(key, max(min(given), 0.02))

    def _observe(self, key: Key, known: KnownJob) -> Observed:
        job = known.job
        pods = tuple(self.store.pods_of(job))
        first = rank0_of(pods, job.status)
        rank0 = first.uid if first else None
        return Observed(
            job=job,
            pods=pods,
            vanished=tuple(self.store.vanished_pods_of(job)),
            trainer_image=self.trainer_image,
            service=self.store.service_of(job),
            objects=self.store.objects_of(job),
            makes_network_policies=self.makes_network_policies,
            all_of=self.store.all_of,
            indexes=self.store.index,
            begun_attempt=self.status_writer.begun_attempt(job),
            nodes_gone=self.lookups.nodes(key, NodeState.GONE),
            nodes_cordoned=self.lookups.nodes(key, NodeState.CORDONED),
            logs=self.lookups.logs(key),
            warnings=self.lookups.warnings(key),
            scale_up=self.lookups.scale_up(key),
            progress=self.progress.latest(key, rank0),
            silent_seconds=self.progress.silent_seconds(key, rank0),
            rejections=self.rejections.of(key),
            refused_removals=self.rejections.removals_of(key),
            dropped_fields=self.status_writer.dropped_fields,
        )

    def _is_overdue(self, key: Key) -> bool:
        """Whether something was written and did not show in time."""
        left = self.expectations.seconds_left(key)
        if left is None or left > 0:
            return False
        EXPECTATIONS_OVERDUE.inc()
        logger.info("%s/%s: the watch has not shown an own write in time; looking it up", *key, extra=about(key))
        return True

    async def _look_up(self, key: Key, known: KnownJob) -> None:
        """List the job's pods, Services and other objects from the API server, not from the caches."""
        job, labels = known.job, of_job(known.job.uid)
        await asyncio.gather(
            self.store.pods.refresh(
                self.client, job.namespace, labels=labels, covers=lambda pod: pod.job_uid == job.uid
            ),
            self.store.services.refresh(
                self.client, job.namespace, labels=labels, covers=lambda service: service.job_uid == job.uid
            ),
            *(
                cache.refresh(self.client, job.namespace, labels=labels, covers=lambda found: found.job_uid == job.uid)
                for cache in self.store.objects.values()
                if cache.labels == MANAGED
            ),
        )
        self.expectations.meet_all(key)

    async def _delete_orphans(self, key: Key) -> None:
        """Pods of a job that is gone go by their owner references, but one by one: the garbage collector takes 20 a second."""
        for uid in self.store.orphaned(key):
            # `kubectl delete --cascade=orphan` leaves them without an owner, and the watch of the pods may be late.
            await self._read_pods_of(key[0], uid)
            if uid not in self.store.orphaned(key):
                continue
            try:
                await self.client.delete_collection(PODS, key[0], of_job(uid))
            except RejectedError as error:  # the garbage collector has them, and a new job of this name must not wait
                logger.warning("%s/%s: cannot delete the pods of a deleted job: %s", *key, error, extra=about(key))
            self.store.forget_orphaned(key, uid)

    async def _read_pods_of(self, namespace: str, uid: str) -> None:
        await self.store.pods.refresh(self.client, namespace, labels=of_job(uid), covers=lambda pod: pod.job_uid == uid)

    async def _close_groups_of_deleted_jobs(self, key: Key) -> bool:
        """A finalizer of the scheduling provider keeps pods and their quota although their job is gone.

        Returns whether no such group is left. The API server may refuse the patch for a moment, as the provider's webhook is asked.
        """
        is_closed = True
        for uid, pods in self.store.held_by_group(key).items():
            # Under its uid, since what is refused must not show in the status of another job that has its name by now.
            job = Job(namespace=key[0], name=uid, uid=uid, resource_version="", generation=0, deleting=True, spec=None)
            await self.actuator.run(job, tuple(self._provider(key).end(Observed(job=job, pods=pods))))
            is_refused = bool(self.rejections.of(key_of(job)))
            self.memories.forget(key_of(job))
            if is_refused:
                is_closed = False
            else:
                self.store.forget_held_by_group(key, uid)
        return is_closed

    def _forget(self, key: Key) -> None:
        """Forget a deleted job. Another one may have its name already: both can happen between two reconciles."""
        self.memories.forget(key)
        self.lookups.forget(key)
        self.progress.forget(key)
        self.queue.drop(key)


def _never_seen(observed: Observed, created: Collection[str]) -> bool:
    """Whether pods are missing that existed by the status and that this process has never seen.

    Its cache of pods may be older than the job, and a pod that counts as deleted by mistake would restart the gang. A pod that
    has gone says nothing of the one of its name that this process has `created` since and that the watch has not shown.
    """
    job = observed.job
    spec = job.spec_of_attempt
    if spec is None or job.deleting or job.status.finished or not job.status.condition(ConditionType.CREATED):
        return False
    gone = [pod for pod in observed.vanished if pod.name not in created]
    ranks = {pod.rank for pod in (*observed.pods, *gone) if is_current(pod, job.status)}
    return len(ranks) < spec.nodes
