"""The one implementation of the client; `synchronous.py` offers the same without coroutines."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing
from typing import Any, Final, Self

from ddpjob.client.errors import (
    ConflictError,
    NotFoundError,
    NotInstalledError,
    UnreachableError,
    WaitTimeoutError,
    translated,
)
from ddpjob.client.functions import Function, function_manifests
from ddpjob.client.jobs import Goal, Job, JobEvent, Pod, read_event, read_job, read_pod
from ddpjob.client.logs import MAX_PODS, Attempt, LogLine, Selection, finished_log, followed_log, too_many
from ddpjob.client.outage import Outage
from ddpjob_operator.api import names
from ddpjob_operator.api.names import ConditionType
from ddpjob_operator.api.resource import Body
from ddpjob_operator.transport.access import Access, load_access
from ddpjob_operator.transport.client import Client as Transport
from ddpjob_operator.transport.errors import ApiError, GoneError
from ddpjob_operator.transport.errors import NotFoundError as NoSuchObjectError
from ddpjob_operator.transport.resources import CONFIG_MAPS, DDPJOBS, EVENTS, PODS, of_job

ALL_NAMESPACES: Final = "*"
"""The namespace argument that means all of them."""

#: Name of this client as field manager and in audit logs.
MANAGER = "ddpjob-client"
_SECONDS_TO_SUSPEND = 600.0

# In the client's class `list` is a method.
Jobs = list[Job]
Pods = list[Pod]
JobEvents = list[JobEvent]


class AsyncClient:
    """The DDPJobs of one cluster. It is an asynchronous context manager, which holds the connections."""

    def __init__(
        self, *, namespace: str | None = None, context: str | None = None, kubeconfig: str | None = None
    ) -> None:
        """Connects only when it is entered.

        Args:
            namespace: Namespace of jobs that are named without one; by default that of the kubeconfig's context.
            context: Context of the kubeconfig instead of its current one.
            kubeconfig: Path of a kubeconfig, or several as in $KUBECONFIG, which is the default.
        """
        self._namespace, self._context, self._kubeconfig = namespace, context, kubeconfig
        self._access: Access | None = None
        self._api: Transport | None = None
        self._fresh: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Read the kubeconfig.

        Raises:
            UnreachableError: there is no usable kubeconfig or service account.
        """
        try:
            self._access = await load_access(kubeconfig=self._kubeconfig, context=self._context)
        except ValueError as error:
            raise UnreachableError(str(error)) from error
        self._access.configuration.connection_pool_maxsize = MAX_PODS + 16
        self._api = await Transport(self._access.configuration, user_agent=MANAGER).__aenter__()
        self._fresh = asyncio.create_task(self._access.keep_fresh())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._fresh is not None:
            self._fresh.cancel()
            await asyncio.gather(self._fresh, return_exceptions=True)
        if self._api is not None:
            await self._api.__aexit__()

    @property
    def api(self) -> Transport:
        """Requests for other kinds of objects; they raise the transport's errors."""
        assert self._api is not None, "use the client in a `with` statement"
        return self._api

    @property
    def namespace(self) -> str:
        """The namespace of jobs that are named without one."""
        assert self._access is not None, "use the client in a `with` statement"
        return self._namespace or self._access.namespace

    @property
    def server(self) -> str:
        """URL of the API server."""
        assert self._access is not None, "use the client in a `with` statement"
        return self._access.server

    # --- Jobs ---------------------------------------------------------------------------------------------------------

    async def submit(
        self,
        job: Mapping[str, Any] | Function,
        *,
        name: str | None = None,
        namespace: str | None = None,
        dry_run: bool = False,
        nodes: int = 1,
        gpus_per_node: int | None = None,
        image: str | None = None,
        args: Mapping[str, Any] | None = None,
        imports: Collection[str] = (),
        spec: Mapping[str, Any] | None = None,
    ) -> Job:
        """Create a job from a manifest, or from a Python function that each rank calls.

        Args:
            job: A DDPJob as a dictionary, or a function. The source of a function is sent in a ConfigMap, so it must be
                complete in itself: it may use its arguments, its own imports, and the lines of `imports`.
            name: Name of the job; for a function by default the function's name and a random end.
            namespace: Namespace instead of the client's.
            dry_run: Have the server check the job and create nothing.
            nodes: Of a function's job: spec.nodes.
            gpus_per_node: Of a function's job: spec.gpusPerNode.
            image: Of a function's job: spec.image; by default that of the operator's trainer.
            args: Keyword arguments of the function, as JSON values.
            imports: Import statements that the function needs at module level.
            spec: Further fields of a function's job, as in YAML.

        Raises:
            ValueError: the function cannot be sent.
            ConflictError: a job of this name exists.
            RejectedError: the server refuses the job.
            NotInstalledError: the cluster does not serve DDPJobs.
        """
        if not isinstance(job, Mapping):
            fields = {"nodes": nodes, "gpusPerNode": gpus_per_node, "image": image}
            given = {key: value for key, value in fields.items() if value is not None}
            manifest, config_map = function_manifests(
                job, name=name, spec={**given, **(spec or {})}, args=args or {}, imports=imports
            )
            return await self._create_with(manifest, config_map, namespace or self.namespace, dry_run=dry_run)
        body = dict(job)
        body["metadata"] = {**(job.get("metadata") or {}), **({"name": name} if name else {})}
        where = namespace or body["metadata"].get("namespace") or self.namespace
        body["metadata"]["namespace"] = where
        return read_job(await self._create(body, where, dry_run=dry_run))

    async def _create(self, body: Body, namespace: str, *, dry_run: bool) -> Body:
        name = body["metadata"].get("name")
        with translated("create", DDPJOBS, namespace, name):
            try:
                return await self.api.create(DDPJOBS, namespace, body, dry_run=dry_run)
            except NoSuchObjectError:
                await self._explain_missing_type()
                raise

    async def _create_with(self, body: Body, config_map: Body, namespace: str, *, dry_run: bool) -> Job:
        """Create a job and the ConfigMap that it owns. Its pods wait for the ConfigMap if they are faster."""
        job = read_job(
            await self._create(
                {**body, "metadata": {**body["metadata"], "namespace": namespace}}, namespace, dry_run=dry_run
            )
        )
        owner = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": job.name,
            "uid": job.uid,
            "controller": False,
            "blockOwnerDeletion": False,
        }
        metadata = {**config_map["metadata"], "namespace": namespace, "ownerReferences": [owner]}
        try:
            with translated("create", CONFIG_MAPS, namespace, metadata["name"]):
                await self.api.create(CONFIG_MAPS, namespace, {**config_map, "metadata": metadata}, dry_run=dry_run)
        except Exception:
            if not dry_run:
                await self.delete(job.name, namespace=namespace)
            raise
        return job

    async def apply(self, body: Body, *, namespace: str | None = None, dry_run: bool = False) -> Body:
        """Create or change a DDPJob or a ConfigMap by server-side apply; gives it as stored.

        Raises:
            RejectedError: the server refuses the object.
            NotInstalledError: the cluster does not serve DDPJobs.
        """
        resource = {names.KIND: DDPJOBS, "ConfigMap": CONFIG_MAPS}[body["kind"]]
        name = body["metadata"]["name"]
        where = namespace or body["metadata"].get("namespace") or self.namespace
        sent = {**body, "metadata": {**body["metadata"], "namespace": where}}
        with translated("patch", resource, where, name):
            try:
                return await self.api.apply(resource, where, name, sent, manager=MANAGER, dry_run=dry_run)
            except NoSuchObjectError:
                await self._explain_missing_type()
                raise

    async def get(self, name: str, *, namespace: str | None = None) -> Job:
        """A job as it is now.

        Raises:
            NotFoundError: there is no such job.
            NotInstalledError: the cluster does not serve DDPJobs.
            ForbiddenError: the user may not read jobs here.
        """
        where = namespace or self.namespace
        with translated("get", DDPJOBS, where, name):
            try:
                return read_job(await self.api.get(DDPJOBS, where, name))
            except NoSuchObjectError:
                await self._explain_missing_type()
                raise

    async def list(self, *, namespace: str | None = None, labels: str = "") -> Jobs:
        """The jobs of a namespace, or of ALL_NAMESPACES, that match a label selector; oldest first.

        Raises:
            NotInstalledError: the cluster does not serve DDPJobs.
            ForbiddenError: the user may not list jobs here.
        """
        where = namespace or self.namespace
        scope = None if where == ALL_NAMESPACES else where
        with translated("list", DDPJOBS, scope):
            try:
                found = [read_job(body) async for page in self.api.pages(DDPJOBS, scope, labels) for body in page.items]
            except NoSuchObjectError:
                await self._explain_missing_type()
                raise
        return sorted(found, key=lambda job: (job.created, job.namespace, job.name))

    async def pods(self, job: Job, *, attempt: int | None = None) -> Pods:
        """The pods of a job that exist, by attempt and rank; of one attempt if it is given.

        Raises:
            ForbiddenError: the user may not list pods here.
        """
        with translated("list", PODS, job.namespace):
            pages = self.api.pages(PODS, job.namespace, of_job(job.uid, attempt))
            found = [pod async for page in pages for body in page.items if (pod := read_pod(body)) is not None]
        return sorted(found, key=lambda pod: (pod.attempt, pod.rank))

    async def events(self, name: str, *, namespace: str | None = None) -> JobEvents:
        """The events of a job and of its pods that the server still keeps, oldest first.

        Raises:
            NotFoundError: there is no such job.
            ForbiddenError: the user may not list events here.
        """
        job = await self.get(name, namespace=namespace)
        pods = re.compile(rf"{re.escape(name)}-\d+-\d+")
        with translated("list", EVENTS, job.namespace):
            pages = self.api.pages(EVENTS, job.namespace)
            found = [
                read_event(body)
                async for page in pages
                for body in page.items
                if _concerns(body.get("involvedObject") or {}, job, pods)
            ]
        return sorted(found, key=lambda event: event.time)

    # --- Following ----------------------------------------------------------------------------------------------------

    async def watch(self, name: str, *, namespace: str | None = None) -> AsyncGenerator[Job, None]:
        """The job as it is now, and again after each change, until it is deleted.

        Once the job has been read, an API server that cannot be reached is tried again for five minutes.

        Raises:
            UnreachableError: the API server cannot be reached.
            NotFoundError: there is no such job, or it has been deleted.
        """
        where = namespace or self.namespace
        uid = ""
        outage = Outage()
        while True:
            try:
                job = await self.get(name, namespace=where)
                if uid and job.uid != uid:
                    raise NotFoundError(
                        f"{names.KIND} {where}/{name} was deleted, and another one of this name was created"
                    )
                uid = job.uid
                outage.is_over()
                yield job
                async with aclosing(self._changes(job)) as changes:
                    async for changed in changes:
                        yield changed
            except UnreachableError as error:
                if not uid:
                    raise
                await outage.pause(error)

    async def _changes(self, job: Job) -> AsyncGenerator[Job, None]:
        """What becomes of a job, until the server ends the watch."""
        where, name = job.namespace, job.name
        version = job.body["metadata"]["resourceVersion"]
        with translated("watch", DDPJOBS, where, name):
            events = self.api.watch(DDPJOBS, where, "", version, fields=f"metadata.name={name}")
            try:
                async with aclosing(events):
                    async for event in events:
                        if event.type == "DELETED":
                            raise NotFoundError(f"{names.KIND} {where}/{name} was deleted")
                        if event.type != "BOOKMARK":
                            yield read_job(event.body)
            except GoneError:  # the job is read again
                return

    async def wait(
        self,
        name: str,
        *,
        until: Goal | str = Goal.FINISHED,
        timeout: float | None = None,  # noqa: ASYNC109  # the caller's deadline, as in all clients
        namespace: str | None = None,
    ) -> Job:
        """Wait until the job has reached a state, or can no longer reach it; `Job.reached` says which of both.

        Args:
            name: Name of the job.
            until: succeeded, failed, finished or running. A wait for `succeeded` returns at once for a failed job, and
                the other way round; a wait for `running` returns at once for a finished one.
            timeout: Seconds; None waits without end.
            namespace: Namespace instead of the client's.

        Raises:
            WaitTimeoutError: neither happened in time.
            NotFoundError: there is no such job, or it was deleted meanwhile.
        """
        goal = Goal(until)
        seen: Job | None = None
        try:
            async with asyncio.timeout(timeout), aclosing(self.watch(name, namespace=namespace)) as jobs:
                async for job in jobs:
                    seen = job
                    if job.reached(goal) is not None:
                        return job
        except TimeoutError:
            where = namespace or self.namespace
            state = f"it is {seen.phase}: {seen.status.message or 'no message yet'}" if seen else "it was never read"
            raise WaitTimeoutError(f"{names.KIND} {where}/{name} is not {goal} after {timeout:g} s; {state}") from None
        raise AssertionError("a watch ends by an error only")

    async def logs(
        self,
        name: str,
        *,
        namespace: str | None = None,
        follow: bool = False,
        ranks: Collection[int] | None = None,
        attempt: Attempt = None,
        tail_lines: int | None = None,
        since_seconds: int | None = None,
        on_note: Callable[[str], None] = lambda text: None,  # noqa: ARG005
    ) -> AsyncGenerator[LogLine, None]:
        """The lines of all ranks, merged.

        Args:
            name: Name of the job.
            namespace: Namespace instead of the client's.
            follow: Go on with what is printed, into later attempts, until the job has finished.
            ranks: Node ranks; None for all.
            attempt: A number, or `all`; None for the current attempt.
            tail_lines: Only the last lines of each rank.
            since_seconds: Only lines of the last seconds.
            on_note: Called with a sentence about each log that is gone or cannot be read, and each new attempt.

        Raises:
            NotFoundError: there is no such job.
            ForbiddenError: the user may not read logs here.
            ConflictError: more pods match than logs can be read at once.
        """
        job = await self.get(name, namespace=namespace)
        selection = Selection(ranks=ranks, attempt=attempt, tail_lines=tail_lines, since_seconds=since_seconds)
        if follow and not job.finished:
            lines = followed_log(self.api, job.namespace, name, selection, on_note)
        else:
            pods = await self.pods(job)
            wanted = [pod for pod in pods if selection.wants(pod, job.status.attempt, follow=False)]
            _note_missing(job, wanted, selection, on_note)
            started = [pod for pod in wanted if pod.started]
            if len(started) > MAX_PODS:
                raise too_many(job.namespace, name, len(started))
            lines = finished_log(self.api, job.namespace, started, selection, on_note)
        async with aclosing(lines):
            async for line in lines:
                yield line

    # --- Changes ------------------------------------------------------------------------------------------------------

    async def suspend(self, name: str, *, namespace: str | None = None) -> Job:
        """Stop all pods of a job; they may save their work. Returns before they have stopped.

        Raises:
            NotFoundError: there is no such job.
            ConflictError: the job has finished.
            ForbiddenError: the user may not change jobs here.
        """
        return await self._set_suspend(name, namespace, suspend=True)

    async def resume(self, name: str, *, namespace: str | None = None) -> Job:
        """Start a suspended job again.

        Raises:
            NotFoundError: there is no such job.
            ConflictError: the job has finished.
            ForbiddenError: the user may not change jobs here.
        """
        return await self._set_suspend(name, namespace, suspend=False)

    async def restart(self, name: str, *, namespace: str | None = None) -> Job:
        """Stop all pods, which may save their work, and start the next attempt: a suspension that is ended at once.

        Raises:
            NotFoundError: there is no such job.
            ConflictError: the job has finished.
            WaitTimeoutError: the pods did not stop in ten minutes; the job stays suspended.
            ForbiddenError: the user may not change jobs here.
        """
        job = await self.suspend(name, namespace=namespace)
        try:
            async with (
                asyncio.timeout(_SECONDS_TO_SUSPEND),
                aclosing(self.watch(name, namespace=job.namespace)) as jobs,
            ):
                async for seen in jobs:
                    is_seen = seen.status.observed_generation >= job.generation
                    if seen.finished or (is_seen and seen.status.condition(ConditionType.SUSPENDED)):
                        break
        except TimeoutError:
            raise WaitTimeoutError(
                f"{names.KIND} {job.namespace}/{name}: its pods have not stopped after {_SECONDS_TO_SUSPEND:g} s; it stays"
                f" suspended (to start it again: ddpjob resume {name} -n {job.namespace})"
            ) from None
        return await self.resume(name, namespace=job.namespace)

    async def delete(self, name: str, *, namespace: str | None = None) -> Job:
        """Delete a job, its pods and their logs. Checkpoints in volumes stay. Gives the job as it was.

        Raises:
            NotFoundError: there is no such job.
            ForbiddenError: the user may not delete jobs here.
        """
        job = await self.get(name, namespace=namespace)
        with translated("delete", DDPJOBS, job.namespace, name):
            await self.api.delete(DDPJOBS, job.namespace, name, uid=job.uid, propagation="Background")
        return job

    async def _set_suspend(self, name: str, namespace: str | None, *, suspend: bool) -> Job:
        job = await self.get(name, namespace=namespace)
        if job.finished:
            raise ConflictError(
                f"{names.KIND} {job.namespace}/{name} has {job.phase.lower()} and cannot be suspended, resumed or"
                " restarted; submit it again under another name, or delete it first"
            )
        patch = {"metadata": {"uid": job.uid}, "spec": {"suspend": suspend}}
        with translated("patch", DDPJOBS, job.namespace, name):
            return read_job(await self.api.merge_patch(DDPJOBS, job.namespace, name, patch))

    async def _explain_missing_type(self) -> None:
        """Raise NotInstalledError where the server serves DDPJobs in other versions only; called after a 404."""
        try:
            group = await self.api.group_versions(names.GROUP)
        except ApiError:
            return
        if group and names.VERSION not in group:
            raise NotInstalledError(
                f"the API server serves {names.KIND} in {', '.join(group)}, and this client uses {names.VERSION}; upgrade"
                " the operator's chart, or install the release of ddpjob that the cluster runs"
            )


def _concerns(about: Mapping[str, Any], job: Job, pods: re.Pattern[str]) -> bool:
    name = str(about.get("name"))
    if about.get("kind") == names.KIND:
        return name == job.name and about.get("uid") in (None, "", job.uid)
    return about.get("kind") == "Pod" and pods.fullmatch(name) is not None


def _note_missing(job: Job, pods: Collection[Pod], selection: Selection, note: Callable[[str], None]) -> None:
    """Say which of the selected ranks have no log, and why."""
    for pod in pods:
        if not pod.started:
            why = f": {pod.message}" if pod.message else ""
            note(f"rank {pod.rank}: the pod {pod.name} has no log yet ({pod.state}{why})")
    if selection.attempt == "all":
        there = {pod.attempt for pod in pods}
        gone = [number for number in range(1, job.status.attempt + 1) if number not in there]
        if gone:
            note(
                f"no pods of attempt {', '.join(map(str, gone))} exist any more: survivors of a failed attempt are deleted"
                " when the next one starts"
            )
    elif not pods:
        which = selection.attempt or job.status.attempt
        note(f"no pods of attempt {which} exist; the job is {job.phase}: {job.status.message or 'no message'}")
