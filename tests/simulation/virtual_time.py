"""An event loop whose clock moves only when nothing is left to do, and the operator's clocks on top of it.

No timer is waited for and no socket exists, so hours pass in milliseconds and always in the same order.
"""

import asyncio
import contextvars
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: The loop's clock at its start. Monotonic clocks never start near zero on a machine that runs.
START_SECONDS = 100_000.0
#: The cluster's wall clock at that moment, in seconds since the epoch.
START_WALL_SECONDS = 1_800_000_000.0

#: Rounds of the loop at one moment: hundreds happen, thousands mean that they never end.
MAX_ROUNDS = 20_000

#: Name of the operator process whose code runs; empty for the model's own.
RUNNING_PROCESS: contextvars.ContextVar[str] = contextvars.ContextVar("running_process", default="")


class StalledError(RuntimeError):
    """The simulated time cannot go on."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in order of their time; between them time jumps."""

    def __init__(self, task_made: Callable[[str, asyncio.Task[Any]], None]) -> None:
        """`task_made` is called with every new task and the name of the process that it belongs to."""
        super().__init__()
        self._seconds = START_SECONDS
        self._num_rounds = 0
        self._clock_resolution = 1e-6
        self._selector = self  # BaseEventLoop asks it for what has happened outside: nothing ever does
        self._task_made = task_made
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """Seconds on the virtual clock."""
        return self._seconds

    def select(self, timeout: float | None) -> list[Any]:
        """Instead of waiting for sockets: let the time pass."""
        if timeout is None:
            raise StalledError("nothing is scheduled any more")
        self._num_rounds = 0 if timeout else self._num_rounds + 1
        if self._num_rounds > MAX_ROUNDS:
            raise StalledError("the virtual time does not advance: a task loops without a pause")
        self._seconds += timeout
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps in `select` whom a signal would have to wake."""

    def _make_task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        context = options.get("context")
        process = RUNNING_PROCESS.get() if context is None else context.get(RUNNING_PROCESS, "")
        self._task_made(process, task)
        return task


class OperatorClocks:
    """Stands in for the module `time` inside the operator: one machine's clocks per process."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.offset_seconds: dict[str, float] = {}
        """By process: how far its wall clock is off."""

    def time(self) -> float:
        """The wall clock of the process that asks; it may jump."""
        return self.wall_of(RUNNING_PROCESS.get())

    def monotonic(self) -> float:
        """The same for all, and only forward."""
        return self._loop.time()

    def wall_of(self, process: str) -> float:
        """The wall clock of a process; the cluster's own for the empty name."""
        return START_WALL_SECONDS + self._loop.time() - START_SECONDS + self.offset_seconds.get(process, 0.0)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@contextmanager
def installed(clocks: OperatorClocks, seed: int) -> Iterator[None]:
    """Give the operator's modules these clocks and a seeded source of jitter, for a while."""
    jitter = random.Random(seed)  # noqa: S311 a simulation must be repeatable
    replaced: list[tuple[Any, str, Any]] = []
    for name, module in list(sys.modules.items()):
        if name.startswith("ddpjob_operator.kube."):
            for attribute, real, stand_in in (("time", time, clocks), ("random", random, jitter)):
                if getattr(module, attribute, None) is real:
                    replaced.append((module, attribute, real))
                    setattr(module, attribute, stand_in)
    try:
        yield
    finally:
        for module, attribute, real in replaced:
            setattr(module, attribute, real)
