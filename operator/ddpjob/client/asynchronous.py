"""The one implementation of the client; `synchronous.py` offers the same without coroutines.

What only some methods need is imported by them: each command of the terminal pays for all that this module imports.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Self

from ddpjob.client import following, objects
from ddpjob.client.errors import UnreachableError
from ddpjob.client.jobs import Goal, Job, JobEvent, Pod
from ddpjob_operator.api import names
from ddpjob_operator.api.resource import Body
from ddpjob_operator.transport.access import Access, load_access
from ddpjob_operator.transport.client import Client as Transport

if TYPE_CHECKING:
    from ddpjob.client.files import Files
    from ddpjob.client.functions import Function
    from ddpjob.client.inspection import RankProgresses, Stacks
    from ddpjob.client.logs import Attempt, LogLine

ALL_NAMESPACES: Final = "*"
"""The namespace argument that means all of them."""

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
        self._access.configuration.connection_pool_maxsize = objects.MAX_LOGS + 16
        self._api = await Transport(self._access.configuration, user_agent=objects.MANAGER).__aenter__()
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
        files: Files | str | os.PathLike[str] | None = None,
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
            files: Files for the working directory of the program, /workspace: a directory, whose files are selected as
                `read_folder` does, or contents by path. They travel in a ConfigMap that the job owns, so they are at
                most 1 MiB together, and read-only.

        Raises:
            ValueError: the function or the files cannot be sent.
            ForbiddenError: the user may not create jobs here, or ConfigMaps for files.
            ConflictError: a job of this name exists.
            RejectedError: the server refuses the job.
            NotInstalledError: the cluster does not serve DDPJobs.
        """
        if not isinstance(job, Mapping):
            from ddpjob.client.functions import function_job

            fields = {"nodes": nodes, "gpusPerNode": gpus_per_node, "image": image}
            given = {key: value for key, value in fields.items() if value is not None}
            job, script = function_job(job, name=name, spec={**given, **(spec or {})}, args=args or {}, imports=imports)
        else:
            script = {}
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            **job,
            "metadata": {**(job.get("metadata") or {}), **({"name": name} if name else {})},
        }
        where = namespace or body["metadata"].get("namespace") or self.namespace
        if isinstance(files, str | os.PathLike):
            from ddpjob.client.files import read_folder

            files = read_folder(files)
        sent = {**(files or {}), **script}
        if not sent:
            return await objects.create(self.api, where, body, dry_run=dry_run)
        return await objects.create_with_files(self.api, where, body, sent, dry_run=dry_run)

    async def apply(self, body: Body, *, namespace: str | None = None, dry_run: bool = False) -> Body:
        """Create or change a DDPJob or a ConfigMap by server-side apply; gives it as stored.

        Raises:
            RejectedError: the server refuses the object.
            NotInstalledError: the cluster does not serve DDPJobs.
        """
        where = namespace or body["metadata"].get("namespace") or self.namespace
        return await objects.apply(self.api, where, body, dry_run=dry_run)

    async def get(self, name: str, *, namespace: str | None = None) -> Job:
        """A job as it is now.

        Raises:
            NotFoundError: there is no such job.
            NotInstalledError: the cluster does not serve DDPJobs.
            ForbiddenError: the user may not read jobs here.
        """
        return await objects.get(self.api, namespace or self.namespace, name)

    async def list(self, *, namespace: str | None = None, labels: str = "") -> Jobs:
        """The jobs of a namespace, or of ALL_NAMESPACES, that match a label selector; oldest first.

        Raises:
            NotInstalledError: the cluster does not serve DDPJobs.
            ForbiddenError: the user may not list jobs here.
        """
        where = namespace or self.namespace
        return await objects.list_jobs(self.api, None if where == ALL_NAMESPACES else where, labels)

    async def pods(self, job: Job, *, attempt: int | None = None) -> Pods:
        """The pods of a job that exist, by attempt and rank; of one attempt if it is given.

        Raises:
            ForbiddenError: the user may not list pods here.
        """
        return await objects.pods(self.api, job, attempt)

    async def events(self, name: str, *, namespace: str | None = None) -> JobEvents:
        """The events of a job and of its pods that the server still keeps, oldest first.

        Raises:
            NotFoundError: there is no such job.
            ForbiddenError: the user may not list events here.
        """
        return await objects.events(self.api, await self.get(name, namespace=namespace))

    async def stacks(self, name: str, *, namespace: str | None = None, ranks: Collection[int] | None = None) -> Stacks:
        """The Python stacks of all threads of each running rank, by rank.

        Args:
            name: Name of the job.
            namespace: Namespace instead of the client's.
            ranks: Node ranks; None for all.

        Raises:
            NotFoundError: there is no such job.
            ConflictError: none of its pods runs.
            ForbiddenError: the user may not read pods, or run commands in them (create pods/exec).
        """
        from ddpjob.client import inspection

        job, pods = await self._running(name, namespace, ranks)
        return await inspection.stacks(self.api, job, pods)

    async def progress(
        self, name: str, *, namespace: str | None = None, ranks: Collection[int] | None = None
    ) -> RankProgresses:
        """Where each running rank is, and where its time went since its first step; arguments and errors are those of `stacks`."""
        from ddpjob.client import inspection

        job, pods = await self._running(name, namespace, ranks)
        return await inspection.progress(self.api, job, pods)

    async def _running(self, name: str, namespace: str | None, ranks: Collection[int] | None) -> tuple[Job, Pods]:
        job = await self.get(name, namespace=namespace)
        pods = await self.pods(job, attempt=job.status.attempt)
        return job, [pod for pod in pods if ranks is None or pod.rank in ranks]

    # --- Following ----------------------------------------------------------------------------------------------------

    async def watch(self, name: str, *, namespace: str | None = None) -> AsyncGenerator[Job, None]:
        """The job as it is now, and again after each change, until it is deleted.

        Once the job has been read, an API server that cannot be reached is tried again for five minutes.

        Raises:
            UnreachableError: the API server cannot be reached.
            NotFoundError: there is no such job, or it has been deleted.
        """
        async with aclosing(following.watch(self.api, namespace or self.namespace, name)) as jobs:
            async for job in jobs:
                yield job

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
        return await following.wait(self.api, namespace or self.namespace, name, Goal(until), timeout)

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
        from ddpjob.client import logs

        job = await self.get(name, namespace=namespace)
        selection = logs.Selection(ranks=ranks, attempt=attempt, tail_lines=tail_lines, since_seconds=since_seconds)
        if follow and not job.finished:
            lines = logs.followed_log(self.api, job.namespace, name, selection, on_note)
        else:
            pods = await self.pods(job)
            wanted = [pod for pod in pods if selection.wants(pod, job.status.attempt, follow=False)]
            logs.note_missing(job, wanted, selection, on_note)
            started = [pod for pod in wanted if pod.started]
            if len(started) > objects.MAX_LOGS:
                raise logs.too_many(job.namespace, name, len(started))
            lines = logs.finished_log(self.api, job.namespace, started, selection, on_note)
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
        return await following.set_suspend(self.api, namespace or self.namespace, name, suspend=True)

    async def resume(self, name: str, *, namespace: str | None = None) -> Job:
        """Start a suspended job again.

        Raises:
            NotFoundError: there is no such job.
            ConflictError: the job has finished.
            ForbiddenError: the user may not change jobs here.
        """
        return await following.set_suspend(self.api, namespace or self.namespace, name, suspend=False)

    async def restart(
        self,
        name: str,
        *,
        namespace: str | None = None,
        on_note: Callable[[str], None] = lambda text: None,  # noqa: ARG005
    ) -> Job:
        """Stop all pods, which may save their work, and start the next attempt: a suspension that is ended at once.

        Args:
            name: Name of the job.
            namespace: Namespace instead of the client's.
            on_note: Called with a sentence about what it waits for, whenever that changes.

        Raises:
            NotFoundError: there is no such job.
            ConflictError: the job has finished.
            WaitTimeoutError: the pods did not stop in ten minutes; the job stays suspended.
            ForbiddenError: the user may not change jobs here.
        """
        return await following.restart(self.api, namespace or self.namespace, name, on_note)

    async def delete(self, name: str, *, namespace: str | None = None) -> Job:
        """Delete a job, its pods and their logs. Checkpoints in volumes stay. Gives the job as it was.

        Raises:
            NotFoundError: there is no such job.
            ForbiddenError: the user may not delete jobs here.
        """
        job = await self.get(name, namespace=namespace)
        await objects.delete(self.api, job)
        return job
