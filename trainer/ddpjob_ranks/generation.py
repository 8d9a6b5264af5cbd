"""Generations of ranks: when one rank fails, all ranks start again within their pods, whose launchers continue.

A generation ends with the first rank that fails. Its launcher writes into a pipe, which a thread in every rank of that node
reads. The thread saves what the rank still holds and ends the process, and the launcher starts the next generation. The ranks
of that write into the store, which the launcher of node 0 keeps alive, that theirs has begun. On every other node a process
next to the ranks waits for this (`ddpjob_ranks.launch.follow`), since the ranks there may hang, and its launcher does the same.

The ranks of a pod that is gone are missing in the next generation, where the others wait for the pod that replaces it
(`ddpjob_ranks.launch.join`).
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from ddpjob_ranks import contract, slots
from ddpjob_ranks.errors import ReplacedError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

THREAD_NAME: Final = "generation"
#: How long one wait for the next generation takes; it is repeated.
LISTEN: Final = timedelta(days=7)
#: The slot of a rank's own memory whose step is the last generation that came to its first step.
BEGUN_SLOT: Final = 2
#: The slot whose step is the last one that the rank has done.
DONE_SLOT: Final = 3


@dataclass(slots=True, kw_only=True)
class Generation:
    """The generation of this process."""

    number: int
    """From 1, the same on all ranks that belong together."""
    pipe: int
    """File descriptor that ends when the launcher ends the generation."""
    state_memory: int
    """File descriptor of a slot for the state of a survivor, which the ranks of a node share (`slots`)."""
    own_memory: int
    """File descriptor of two slots for what only this rank knows, after even and after odd steps, BEGUN_SLOT and DONE_SLOT."""
    before_exit: Callable[[], None] = field(default=lambda: None)
    """Saves what this rank holds. It runs once, on any thread, before the process ends because its generation does."""
    _saving: threading.Lock = field(default_factory=threading.Lock)

    def follow_launcher(self) -> None:
        """End this process when its launcher ends the generation."""

        def read() -> None:
            os.read(self.pipe, 1)
            self._end()

        threading.Thread(target=read, name=THREAD_NAME, daemon=True).start()

    def announce(self, store: "Store", *, rank: int) -> None:
        """Write into the store that this generation has begun.

        Raises:
            ReplacedError: another pod has replaced this one, whose node did not respond for some time.
        """
        replacement = int(os.environ.get(contract.DDPJOB_REPLACEMENT) or "0")
        if is_replaced(store, rank, replacement):
            raise ReplacedError(f"rank {rank} runs in another pod now, which has replaced this one")
        for number in range(1, self.number + 1):  # the ranks of some may have failed before they could
            store.set(_key(number), "")

    def begun(self) -> None:
        """Record that all ranks of this generation are here and begin to train."""
        slots.mark(self.own_memory, self.number, BEGUN_SLOT)

    def step_done(self, step: int) -> None:
        """Record so many steps as done, by which the launcher sees progress. It takes some microseconds."""
        slots.mark(self.own_memory, step, DONE_SLOT)

    def save(self) -> None:
        """Run `before_exit`; the caller then ends the process. Does not return where another thread does both already."""
        if not self._saving.acquire(blocking=False):
            threading.Event().wait()
        self.before_exit()

    def _end(self) -> None:
        if not self._saving.acquire(blocking=False):
            return  # the thread that saves ends the process
        try:
            self.before_exit()
        finally:
            os._exit(contract.EXIT_PEER_LOST)


_current: list[Generation] = []


def current(environ: Mapping[str, str]) -> Generation | None:
    """The generation of this process; None where no further one would follow it."""
    if not _current and contract.DDPJOB_GENERATION in environ:
        pipe, state, own = map(int, environ[contract.DDPJOB_INHERITED].split())
        number = int(environ[contract.DDPJOB_GENERATION])
        _current.append(Generation(number=number, pipe=pipe, state_memory=state, own_memory=own))
    return _current[0] if _current else None


def wait_for_next(store: "Store", number: int) -> None:
    """Wait until the generation after this one is announced in the store.

    Raises:
        RuntimeError: node 0 is gone, which the collectives of the ranks notice.
    """
    import torch.distributed as dist

    while True:
        try:
            store.wait([_key(number + 1)], LISTEN)
        except dist.DistStoreError:  # that was the timeout
            continue
        return


def newest(store: "Store") -> int:
    """The newest generation that a rank has announced in the store; 0 if none has."""
    number = 0
    while store.check([_key(number + 1)]):
        number += 1
    return number


def replace(store: "Store", ranks: Iterable[int], replacement: int) -> None:
    """Keep the pods that this one replaces from joining again, should their node respond again."""
    for rank in ranks:
        for number in range(1, replacement + 1):
            store.set(_replacement_key(rank, number), "")


def is_replaced(store: "Store", rank: int, replacement: int) -> bool:
    """Whether another pod has replaced this one of the rank."""
    return store.check([_replacement_key(rank, replacement + 1)])


def _key(number: int) -> str:
    return f"ddpjob/generation/{number}"


def _replacement_key(rank: int, replacement: int) -> str:
    return f"ddpjob/replacement/{rank}/{replacement}"
