"""Generations of ranks: when one rank fails, all ranks start again within their pods, whose launchers continue.

A generation ends with the first rank that fails. Its launcher writes into a pipe, which a thread in every rank of that node
reads. The thread saves what the rank still holds and ends the process, and the launcher starts the next generation. The ranks
of that write into the store, which the launcher of node 0 keeps alive, that theirs has begun. On every other node a process
next to the ranks waits for this (`ddpjob_ranks.launch.follow`), since the ranks there may hang, and its launcher does the same.

The ranks of a pod that is gone are missing in the next generation, where the others wait for the pod that replaces it
(`ddpjob_ranks.launch.join`).

With the pod of node 0 the store is gone. The pod that replaces it serves a new one, which has the number of the replacement.
The others join no store with a lower number than the highest that they know of: an earlier pod may still respond, on a node
that the cluster has given up, or at an address that a resolver remembers.
"""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ddpjob_ranks import contract, slots
from ddpjob_ranks.errors import ReplacedError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

THREAD_NAME: Final = "generation"
#: The slot of a rank's own memory whose step is the last generation that came to its first step.
BEGUN_SLOT: Final = 2
#: The slot whose step is the last one that the rank has done.
DONE_SLOT: Final = 3
#: The slots of a node's memory whose steps are numbers of stores: the one that its ranks joined last, or that was there when the
#: pod was created, and the newest one that the process next to them found.
JOINED_SLOT: Final = 0
FOUND_SLOT: Final = 1
#: From this slot on, by local rank: the store that each rank of this generation has joined.
RANKS_SLOT: Final = 2
#: The slot of a rank's own memory whose step is the generation that has come to the end of the training.
COMPLETE_SLOT: Final = 4
#: The slot of a rank's own memory whose step is the bytes that were free on its GPU when it started first.
FREE_MEMORY_SLOT: Final = 5
_STORE_KEY: Final = "ddpjob/store"
_NO_SESSION_KEY: Final = "ddpjob/no-session"


@dataclass(slots=True, kw_only=True)
class Generation:
    """The generation of this process."""

    number: int
    """From 1, the same on all ranks that belong together."""
    pipe: int
    """File descriptor that ends when the launcher ends the generation."""
    state_memory: int
    """File descriptor of two slots for the state, which the ranks of a node share (`slots`)."""
    own_memory: int
    """File descriptor of two slots for what only this rank knows, after one step and another, and of the slots named here."""
    stores: int
    """File descriptor of JOINED_SLOT, FOUND_SLOT and the RANKS_SLOTs, which the ranks of a node share."""
    replacement: int = 0
    """How often this pod had been replaced when it was created; 0 on all ranks of a pod but its first."""
    before_exit: Callable[[], None] = field(default=lambda: None)
    """Saves what this rank holds. It runs once, on any thread, before the process ends because its generation does."""
    _saving: threading.Lock = field(default_factory=threading.Lock)

    def follow_launcher(self) -> None:
        """End this process when its launcher ends the generation."""

        def read() -> None:
            os.read(self.pipe, 1)
            try:
                self.save()
            finally:
                os._exit(contract.EXIT_PEER_LOST)

        threading.Thread(target=read, name=THREAD_NAME, daemon=True).start()

    def announce(self, store: "Store", number_of_store: int, *, node_rank: int, local_rank: int) -> None:
        """Write into the store that this generation has begun, and remember which store it is.

        A pod that replaces this one first writes that into the store and then looks for the next line, so one of the two notices
        the other, and they do not begin the same generation.

        Raises:
            ReplacedError: another pod has replaced this one, whose node did not respond for some time.
        """
        slots.mark(self.stores, number_of_store, RANKS_SLOT + local_rank)
        store.set(_node_key(self.number, node_rank), "")
        if is_replaced(store, node_rank, replacements(os.environ).get(node_rank, 0)):
            raise ReplacedError(os.environ[contract.RANK])
        record_store(self.stores, number_of_store, JOINED_SLOT)
        # All of them, since the ranks of some may have failed before they could; the first one last, which `newest` looks for first.
        for number in range(self.number, 0, -1):
            store.set(key(number), "")

    def record_begin(self) -> None:
        """Record that all ranks of this generation are here and begin to train."""
        slots.mark(self.own_memory, self.number, BEGUN_SLOT)

    def complete(self) -> None:
        """Record that all ranks have come to the end of the training, so that no further start would find the others."""
        slots.mark(self.own_memory, self.number, COMPLETE_SLOT)

    def step_done(self, step: int) -> None:
        """Record so many steps as done, by which the launcher sees progress. It takes some microseconds."""
        slots.mark(self.own_memory, step, DONE_SLOT)

    def save(self) -> None:
        """Run `before_exit`; the caller then ends the process. Blocks for ever in every thread but the first."""
        self._saving.acquire()  # for good
        self.before_exit()


_current: list[Generation] = []


def current(environ: Mapping[str, str]) -> Generation | None:
    """The generation of this process; None where no further one would follow it."""
    if not _current and contract.DDPJOB_GENERATION in environ:
        pipe, state, own, stores = map(int, environ[contract.DDPJOB_INHERITED].split())
        _current.append(
            Generation(
                number=int(environ[contract.DDPJOB_GENERATION]),
                pipe=pipe,
                state_memory=state,
                own_memory=own,
                stores=stores,
                replacement=replacement_of_this_pod(environ),
            )
        )
    return _current[0] if _current else None


def key(number: int) -> str:
    """What the store has once a rank has announced the generation."""
    return f"ddpjob/generation/{number}"


def newest(store: "Store") -> int:
    """The newest generation that a rank has announced in the store; 0 if none has."""
    number = 0
    while store.check([key(number + 1)]):
        number += 1
    return number


def has_begun(store: "Store", number: int, node_rank: int) -> bool:
    """Whether a rank of the node has announced this generation, or has ended as replaced before it could."""
    return store.check([_node_key(number, node_rank)])


def replacements(environ: Mapping[str, str]) -> dict[int, int]:
    """How often the pods of this attempt had been replaced when this one was created, by node rank."""
    pairs = (pair.split(":") for pair in environ.get(contract.DDPJOB_REPLACEMENTS, "").split(",") if pair)
    return {int(node_rank): int(number) for node_rank, number in pairs}


def replacement_of_this_pod(environ: Mapping[str, str]) -> int:
    """How often the pod of this rank had been replaced when it was created; 0 on all ranks of a pod but its first."""
    if environ[contract.LOCAL_RANK] != "0":
        return 0
    return replacements(environ).get(int(environ[contract.RANK]) // int(environ[contract.LOCAL_WORLD_SIZE]), 0)


def replace(store: "Store", replaced: Mapping[int, int]) -> None:
    """Keep the pods that others have replaced, so often by node rank, from joining again, should their node respond again."""
    for node_rank, replacement in replaced.items():
        for number in range(1, replacement + 1):
            store.set(_replacement_key(node_rank, number), "")


def is_replaced(store: "Store", node_rank: int, replacement: int) -> bool:
    """Whether another pod has replaced this one of the node rank."""
    return store.check([_replacement_key(node_rank, replacement + 1)])


def set_up_store(store: "Store", environ: Mapping[str, str]) -> None:
    """Prepare a new store. Its number comes last, since others use a store only once it has one."""
    replaced = replacements(environ)
    replace(store, replaced)
    store.set(_STORE_KEY, str(replaced.get(0, 0)))


def number_of_store(store: "Store") -> int | None:
    """How often the pod that serves the store had been replaced; None while the store is not set up, or of another attempt."""
    return int(store.get(_STORE_KEY)) if store.check([_STORE_KEY]) else None


def record_store(stores: int, number: int, slot: int) -> None:
    """Write the number of a store into the memory that outlives the ranks of a node, unless a higher one is there."""
    slots.mark(stores, max(number, slots.step_of(stores, slot)), slot)


def newest_store(stores: int) -> int:
    """The highest number of a store that this node knows of."""
    return max(slots.step_of(stores, slot) for slot in (JOINED_SLOT, FOUND_SLOT))


def forget_joined(stores: int, num_ranks: int) -> None:
    """Prepare for the ranks of the next generation, of which none has joined a store."""
    for local_rank in range(num_ranks):
        slots.mark(stores, slots.NO_STEP, RANKS_SLOT + local_rank)


def lowest_joined(stores: int, num_ranks: int) -> int | None:
    """The lowest number of a store that a rank of this generation on this node has joined; None while none has."""
    joined = (slots.step_of(stores, RANKS_SLOT + local_rank) for local_rank in range(num_ranks))
    return min((number for number in joined if number != slots.NO_STEP), default=None)


def report_no_session(store: "Store") -> None:
    """Write into the store that the ranks of a node have ended without a session, so that their next ones announce nothing."""
    store.set(_NO_SESSION_KEY, "")


def has_no_session(store: "Store") -> bool:
    """Whether a node has reported that."""
    return store.check([_NO_SESSION_KEY])


def _node_key(number: int, node_rank: int) -> str:
    return f"{key(number)}/{node_rank}"


def _replacement_key(node_rank: int, replacement: int) -> str:
    return f"ddpjob/replacement/{node_rank}/{replacement}"
