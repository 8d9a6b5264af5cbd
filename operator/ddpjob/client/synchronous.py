"""The client without coroutines. Its event loop runs in a thread of its own, so it works in notebooks too."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ddpjob.client.asynchronous import AsyncClient, JobEvents, Jobs, Pods
from ddpjob.client.jobs import Goal, Job
from ddpjob_operator.api.resource import Body

if TYPE_CHECKING:
    from ddpjob.client.files import Files
    from ddpjob.client.functions import Function
    from ddpjob.client.inspection import RankProgresses, Stacks
    from ddpjob.client.logs import Attempt, LogLine

T = TypeVar("T")

_SECONDS_TO_CANCEL = 5.0


class Client:
    """The DDPJobs of one cluster. It is a context manager, which holds the connections.

    Each method does what the method of the same name of AsyncClient does and raises the same errors.
    """

    def __init__(
        self, *, namespace: str | None = None, context: str | None = None, kubeconfig: str | None = None
    ) -> None:
        """Connects only when it is entered.

        Args:
            namespace: Namespace of jobs that are named without one; by default that of the kubeconfig's context.
            context: Context of the kubeconfig instead of its current one.
            kubeconfig: Path of a kubeconfig, or several as in $KUBECONFIG, which is the default.
        """
        self.asynchronous = AsyncClient(namespace=namespace, context=context, kubeconfig=kubeconfig)
        """The same client as coroutines, for `call`."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ddpjob-client", daemon=True)

    def __enter__(self) -> Self:
        """Read the kubeconfig.

        Raises:
            UnreachableError: there is no usable kubeconfig or service account.
        """
        self._thread.start()
        try:
            self.call(self.asynchronous.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.call(self.asynchronous.__aexit__())
        finally:
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of `asynchronous` to its end; an exception such as KeyboardInterrupt cancels it."""
        ended = threading.Event()

        async def run() -> T:
            try:
                return await coroutine
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return future.result()
        except BaseException:
            if future.cancel():  # it has to close its connections before the loop may stop
                ended.wait(_SECONDS_TO_CANCEL)
            raise

    def iterate(self, generator: AsyncGenerator[T, None]) -> Iterator[T]:
        """The items of an asynchronous generator of `asynchronous`, which is closed with the iterator."""

        async def following() -> tuple[T, ...]:
            try:
                return (await anext(generator),)
            except StopAsyncIteration:
                return ()

        try:
            while item := self.call(following()):
                yield item[0]
        finally:
            self.call(generator.aclose())

    @property
    def namespace(self) -> str:
        """The namespace of jobs that are named without one."""
        return self.asynchronous.namespace

    @property
    def server(self) -> str:
        """URL of the API server."""
        return self.asynchronous.server

    def submit(
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
        """Create a job from a manifest or a function; see `AsyncClient.submit`.

        Raises:
            ValueError: the function or the files cannot be sent.
            ForbiddenError: the user may not create jobs here, or ConfigMaps for files.
            ConflictError: a job of this name exists.
            RejectedError: the server refuses the job.
            NotInstalledError: the cluster does not serve DDPJobs.
        """
        return self.call(
            self.asynchronous.submit(
                job,
                name=name,
                namespace=namespace,
                dry_run=dry_run,
                nodes=nodes,
                gpus_per_node=gpus_per_node,
                image=image,
                args=args,
                imports=imports,
                spec=spec,
                files=files,
            )
        )

    def apply(self, body: Body, *, namespace: str | None = None, dry_run: bool = False) -> Body:
        """Create or change a DDPJob or a ConfigMap by server-side apply.

        Raises:
            RejectedError: the server refuses the object.
            NotInstalledError: the cluster does not serve DDPJobs.
        """
        return self.call(self.asynchronous.apply(body, namespace=namespace, dry_run=dry_run))

    def get(self, name: str, *, namespace: str | None = None) -> Job:
        """A job as it is now.

        Raises:
            NotFoundError: there is no such job.
            NotInstalledError: the cluster does not serve DDPJobs.
            ForbiddenError: the user may not read jobs here.
        """
        return self.call(self.asynchronous.get(name, namespace=namespace))

    def list(self, *, namespace: str | None = None, labels: str = "") -> Jobs:
        """The jobs of a namespace, or of ALL_NAMESPACES, that match a label selector; oldest first.

        Raises:
            NotInstalledError: the cluster does not serve DDPJobs.
            ForbiddenError: the user may not list jobs here.
        """
        return self.call(self.asynchronous.list(namespace=namespace, labels=labels))

    def pods(self, job: Job, *, attempt: int | None = None) -> Pods:
        """The pods of a job that exist, by attempt and rank.

        Raises:
            ForbiddenError: the user may not list pods here.
        """
        return self.call(self.asynchronous.pods(job, attempt=attempt))

    def events(self, name: str, *, namespace: str | None = None) -> JobEvents:
        """The events of a job and of its pods that the server still keeps, oldest first.

        Raises:
            NotFoundError: there is no such job.
            ForbiddenError: the user may not list events here.
        """
        return self.call(self.asynchronous.events(name, namespace=namespace))

    def stacks(self, name: str, *, namespace: str | None = None, ranks: Collection[int] | None = None) -> Stacks:
        """The Python stacks of all threads of each running rank, by rank; see `AsyncClient.stacks`.

        Raises:
            NotFoundError: there is no such job.
            ConflictError: none of its pods runs.
            ForbiddenError: the user may not read pods, or run commands in them (create pods/exec).
        """
        return self.call(self.asynchronous.stacks(name, namespace=namespace, ranks=ranks))

    def progress(
        self, name: str, *, namespace: str | None = None, ranks: Collection[int] | None = None
    ) -> RankProgresses:
        """Where each running rank is, and where its time went since its first step.

        Raises:
            NotFoundError: there is no such job.
            ConflictError: none of its pods runs.
            ForbiddenError: the user may not read pods, or run commands in them (create pods/exec).
        """
        return self.call(self.asynchronous.progress(name, namespace=namespace, ranks=ranks))

    def watch(self, name: str, *, namespace: str | None = None) -> Iterator[Job]:
        """The job as it is now, and again after each change, until it is deleted.

        Raises:
            NotFoundError: there is no such job, or it has been deleted.
        """
        return self.iterate(self.asynchronous.watch(name, namespace=namespace))

    def wait(
        self,
        name: str,
        *,
        until: Goal | str = Goal.FINISHED,
        timeout: float | None = None,
        namespace: str | None = None,
    ) -> Job:
        """Wait until the job has reached a state or can no longer reach it; see `AsyncClient.wait`.

        Raises:
            WaitTimeoutError: neither happened in time.
            NotFoundError: there is no such job, or it was deleted meanwhile.
        """
        return self.call(self.asynchronous.wait(name, until=until, timeout=timeout, namespace=namespace))

    def logs(
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
    ) -> Iterator[LogLine]:
        """The lines of all ranks, merged; see `AsyncClient.logs`.

        Raises:
            NotFoundError: there is no such job.
            ForbiddenError: the user may not read logs here.
            ConflictError: more pods match than logs can be read at once.
        """
        return self.iterate(
            self.asynchronous.logs(
                name,
                namespace=namespace,
                follow=follow,
                ranks=ranks,
                attempt=attempt,
                tail_lines=tail_lines,
                since_seconds=since_seconds,
                on_note=on_note,
            )
        )

    def suspend(self, name: str, *, namespace: str | None = None) -> Job:
        """Stop all pods of a job; they may save their work. Returns before they have stopped.

        Raises:
            NotFoundError: there is no such job.
            ConflictError: the job has finished.
            ForbiddenError: the user may not change jobs here.
        """
        return self.call(self.asynchronous.suspend(name, namespace=namespace))

    def resume(self, name: str, *, namespace: str | None = None) -> Job:
        """Start a suspended job again.

        Raises:
            NotFoundError: there is no such job.
            ConflictError: the job has finished.
            ForbiddenError: the user may not change jobs here.
        """
        return self.call(self.asynchronous.resume(name, namespace=namespace))

    def restart(
        self,
        name: str,
        *,
        namespace: str | None = None,
        on_note: Callable[[str], None] = lambda text: None,  # noqa: ARG005
    ) -> Job:
        """Stop all pods, which may save their work, and start the next attempt; see `AsyncClient.restart`.

        Raises:
            NotFoundError: there is no such job.
            ConflictError: the job has finished.
            WaitTimeoutError: the pods did not stop in ten minutes; the job stays suspended.
            ForbiddenError: the user may not change jobs here.
        """
        return self.call(self.asynchronous.restart(name, namespace=namespace, on_note=on_note))

    def delete(self, name: str, *, namespace: str | None = None) -> Job:
        """Delete a job, its pods and their logs. Checkpoints in volumes stay. Gives the job as it was.

        Raises:
            NotFoundError: there is no such job.
            ForbiddenError: the user may not delete jobs here.
        """
        return self.call(self.asynchronous.delete(name, namespace=namespace))
