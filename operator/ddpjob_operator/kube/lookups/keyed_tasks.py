"""Tasks in the background: at most one for each key."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class KeyedTasks(Generic[K]):
    """Starts, finds and cancels tasks by key."""

    def __init__(self) -> None:
        self._tasks: dict[K, asyncio.Task[None]] = {}

    def start(self, key: K, work: Callable[[], Coroutine[None, None, None]], name: str) -> None:
        """Start a task, unless the key has one that has not ended."""
        if (running := self._tasks.get(key)) is not None and not running.done():
            return
        task = self._tasks[key] = asyncio.create_task(work(), name=name)
        task.add_done_callback(lambda ended: self._forget(key, ended))

    def cancel(self, key: K) -> None:
        """Cancel the task of the key, if there is one."""
        if task := self._tasks.pop(key, None):
            task.cancel()

    def cancel_where(self, condition: Callable[[K], bool]) -> None:
        """Cancel the tasks of all keys for which the condition holds."""
        for key in [key for key in self._tasks if condition(key)]:
            self.cancel(key)

    async def stop(self) -> None:
        """Cancel all tasks and wait for their end."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, key: K, ended: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is ended:
            del self._tasks[key]
