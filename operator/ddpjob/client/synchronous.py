"""The client without coroutines. Its event loop runs in a thread of its own, so it works in notebooks too."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from ddpjob.client.asynchronous import AsyncClient
from ddpjob.client.jobs import Job

if TYPE_CHECKING:
    from ddpjob.client.logs import Attempt, LogLine

P = ParamSpec("P")
T = TypeVar("T")

_SECONDS_TO_CANCEL = 5.0


def _awaited(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """The method of Client that runs this method of AsyncClient to its end."""

    @functools.wraps(method)
    def wait_for(self: Client, /, *args: P.args, **options: P.kwargs) -> T:
        return self.call(method(self.asynchronous, *args, **options))

    return wait_for


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

    submit = _awaited(AsyncClient.submit)
    apply = _awaited(AsyncClient.apply)
    get = _awaited(AsyncClient.get)
    list = _awaited(AsyncClient.list)
    pods = _awaited(AsyncClient.pods)
    events = _awaited(AsyncClient.events)
    stacks = _awaited(AsyncClient.stacks)
    progress = _awaited(AsyncClient.progress)

    def watch(self, name: str, *, namespace: str | None = None) -> Iterator[Job]:
        """The job as it is now, and again after each change, until it is deleted.

        Raises:
            NotFoundError: there is no such job, or it has been deleted.
        """
        return self.iterate(self.asynchronous.watch(name, namespace=namespace))

    wait = _awaited(AsyncClient.wait)

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

    suspend = _awaited(AsyncClient.suspend)
    resume = _awaited(AsyncClient.resume)
    restart = _awaited(AsyncClient.restart)
    delete = _awaited(AsyncClient.delete)
