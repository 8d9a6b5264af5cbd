"""Generations of ranks: when one rank fails, all ranks start again within their pods, whose launchers go on.

A generation ends with the first rank that fails. Its launcher closes a pipe, which every rank of that node reads, and the
ranks that it starts for the next generation write into the store, which the launcher of node 0 keeps alive, that theirs has
begun. A thread in every rank waits for either. Then it saves what the rank still holds and ends the process, and the
launcher of that node starts the next generation, too.
"""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from ddpjob_ranks import contract

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

THREAD_NAME: Final = "generation"
#: How long one wait for the next generation takes; it is repeated.
LISTEN: Final = timedelta(days=7)


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
    """File descriptor of two slots for what only this rank knows, after even and after odd steps."""
    before_exit: Callable[[], None] = field(default=lambda: None)
    """Saves what this rank holds. It runs once, on any thread, before the process ends because its generation does."""
    _saving: threading.Lock = field(default_factory=threading.Lock)

    def follow_launcher(self) -> None:
        """End this process when its launcher ends the generation."""

        def read() -> None:
            os.read(self.pipe, 1)
            self._end()

        threading.Thread(target=read, name=THREAD_NAME, daemon=True).start()

    def follow_store(self, store: "Store") -> None:
        """Announce this generation in the store, and end this process when the next one is announced there."""
        own = store.clone()
        own.set(_key(self.number), "")

        def listen() -> None:
            import torch.distributed as dist

            while True:
                try:
                    own.wait([_key(self.number + 1)], LISTEN)
                except dist.DistStoreError:  # that was the timeout
                    continue
                except RuntimeError:  # node 0 is gone, which the collectives of this rank notice
                    return
                self._end()

        threading.Thread(target=listen, name=THREAD_NAME, daemon=True).start()

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


def _key(number: int) -> str:
    return f"ddpjob/generation/{number}"
