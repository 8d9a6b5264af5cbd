"""A training that stands still ends with a verdict: which rank is late, and where.

Each rank's main thread moves a mark (`timeline`). When it has not moved for longer than its phase allows, the rank asks
all others, through the store that the ranks met in. One of those that ask is the judge. If no rank at all gets on, its
verdict goes to all; each writes it and its Python stacks, and exits with EXIT_HUNG.

Two threads on each rank, and connections of their own to the store, whose server is a thread without Python: so they
work while main threads hang in collectives or in endless loops. A rank that cannot run Python (stopped, or held by code
that keeps the interpreter's lock) does not answer, which is its verdict.
"""

import contextlib
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import NoReturn, Self

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d  # torch.distributed's own, which it exports untyped
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import distributed_c10d

from ddpjob_ranks import contract, termination
from ddpjob_ranks.launch.identity import Worker
from ddpjob_ranks.limits import Limits
from ddpjob_ranks.watch import verdict
from ddpjob_ranks.watch.timeline import Phase, Timeline
from ddpjob_ranks.watch.verdict import Place

#: Longest time for a rank to answer. Its threads answer within milliseconds where they can run.
ANSWER_SECONDS = 5.0
#: The same for a rank that lost a peer: the restart waits for it.
LAST_WORDS_SECONDS = 0.5
POLL_SECONDS = 0.02
#: Time between two notes of this rank's place in the store, which say where a rank that is gone was last.
NOTE_SECONDS = 2.0
#: Of a farewell, and how many are told, as the verdict has to fit into a termination message with them.
FAREWELL_CHARACTERS = 200
MAX_FAREWELLS = 2
FOR_EVER = timedelta(days=7)


class Watchdog:
    """Watches from `watch` on, which all ranks call once they have met, to a clean way out of its `with` block."""

    def __init__(self, limits: Limits, timeline: Timeline) -> None:
        self._limits = limits
        self._timeline = timeline
        self._closed = threading.Event()
        self._ending = threading.Event()
        self._spokesman = False
        self._round = 0
        self._asked: dict[int, float] = {}
        self._last: Store | None = None  # until the ranks have met

    def watch(self, store: Store, worker: Worker) -> None:
        """Begin. `store` is the one that the ranks met in; it need not have made a process group of them yet."""
        self._rank, self._world_size = worker.rank, worker.world_size
        # One for each thread: a store serves one caller at a time, and the listener waits in its own.
        connections = (PrefixStore("watchdog", store.clone()) for _ in range(4))
        self._notes, self._ear, self._judge_store, self._last = connections
        self._note()
        self._listener = self._start(self._listen)
        self._start(self._watch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None:
            return  # the process is about to end, and until then it answers
        self._timeline.enter(Phase.END)
        self._closed.set()
        with contextlib.suppress(RuntimeError):
            self._note()
            self._notes.set(f"call/{self._rank}/{self._round}", "end")
            self._listener.join(ANSWER_SECONDS)

    def say_farewell(self, words: str) -> None:
        """Tell the others why this rank ends, before they find out that it has."""
        with contextlib.suppress(RuntimeError):
            if self._last is not None:
                self._last.set(f"gone/{self._rank}", words[:FAREWELL_CHARACTERS])

    def name_lost_peer(self) -> str:
        """Who is gone, for a rank that lost a connection; empty if that cannot be found out in half a second.

        Does not return while a verdict is being carried out, as that ends the process.
        """
        if self._ending.is_set():
            time.sleep(3 * ANSWER_SECONDS)
        found: list[str] = []
        thread = self._start(lambda: found.append(self._lost_peer()))
        thread.join(2 * LAST_WORDS_SECONDS)
        return found[0] if found else ""

    # The monitor thread.

    def _watch(self) -> None:
        answer_seconds = self._answer_seconds
        while not self._closed.wait(min(NOTE_SECONDS, answer_seconds / 2)):
            with contextlib.suppress(RuntimeError):  # the store is gone, and a collective will say so
                self._note()
            place = self._place()
            if place.idle_seconds < place.limit_seconds or self._ending.is_set():
                self._asked.clear()
            elif self._round not in self._asked:
                self._asked = {self._round: time.monotonic()}
                self._start(self._judge)
            elif time.monotonic() - self._asked[self._round] > 3 * answer_seconds:
                self._end(
                    f"rank 0 (host {os.environ.get(contract.MASTER_ADDR)}) does not answer, which keeps the store that"
                    f" ranks meet in; rank {self._rank} waits {place}"
                )

    # A thread for one question.

    def _judge(self) -> None:
        store, number = self._judge_store, self._round
        with contextlib.suppress(RuntimeError):
            if not self._ask(store, number):
                return  # another rank asks, and the listener hears it
            answers = self._answers(store, number, self._answer_seconds)
            words = verdict.of(answers, self._places(store, "seen")) or ""
            for rank, farewell in self._farewells(store).items() if words else ():
                words = f"rank {rank} ended: {farewell}; {words}"
            self._spokesman = bool(words)
            store.set(f"verdict/{number}", words)

    def _ask(self, store: Store, number: int) -> bool:
        """Ask all ranks for their places, unless another rank does; whether this one does."""
        me = str(self._rank)
        if store.compare_set(f"judge/{number}", "", me).decode() != me:
            return False
        for rank in range(self._world_size):
            store.set(f"call/{rank}/{number}", "answer")
        return True

    # The listener thread.

    def _listen(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone
            while self._heard(f"call/{self._rank}/{self._round}", FOR_EVER) != "end":
                self._give_answer()
                self._round += 1

    def _give_answer(self) -> None:
        """Say where this rank is, and end with the others if that makes a verdict."""
        self._ear.set(f"answer/{self._round}/{self._rank}", self._place().to_json())
        with contextlib.suppress(RuntimeError):  # the judge stands still itself, and the next question finds that out
            if words := self._heard(f"verdict/{self._round}", timedelta(seconds=2 * self._answer_seconds)):
                self._end(words, self._ear)

    def _heard(self, key: str, timeout: timedelta) -> str:
        self._ear.wait([key], timeout)
        return str(self._ear.get(key), "utf-8")

    def _end(self, words: str, store: Store | None = None) -> NoReturn:
        """Write the verdict and the stacks and end the process; with a store, together with those that answered."""
        self._ending.set()
        last_resort = threading.Timer(3 * self._answer_seconds, os._exit, (contract.EXIT_HUNG,))
        last_resort.daemon = True
        last_resort.start()  # nobody may read what is written below, which may be why all stand still
        try:
            termination.write(f"rank {self._rank}\n{words}", echo=False)
            told = f"ddpjob verdict: {words}\n" if self._spokesman or store is None else ""
            sys.stderr.write(f"{told}ddpjob hang: rank {self._rank}, {self._place()}\n{_stacks()}")
            sys.stderr.flush()
            self._dump_flight_recorder()
            if store is not None:
                self._leave_together(store, self._round, self._answer_seconds)
        finally:
            os._exit(contract.EXIT_HUNG)

    def _leave_together(self, store: Store, number: int, seconds: float) -> None:
        """Wait for those that answered: who leaves first breaks their connections, and rank 0 takes the store away."""
        store.set(f"done/{self._rank}", "")
        answered = [rank for rank in range(self._world_size) if store.check([f"answer/{number}/{rank}"])]
        _poll(lambda: store.check([f"done/{rank}" for rank in answered]), seconds)

    def _dump_flight_recorder(self) -> None:
        """What torch recorded of the last collectives, for its fr_trace (that of NCCL has run on no GPU yet)."""
        if folder := os.environ.get(contract.DDPJOB_EVENTS_DIR):
            dumps = {"gloo": c10d._dump_fr_trace(backend="gloo")}
            if torch.cuda.is_available():
                dumps["nccl"] = c10d._dump_nccl_trace()  # type: ignore[attr-defined] # not in its stubs
            for backend, dump in dumps.items():
                (Path(folder) / f"flight-recorder-{backend}-{self._rank}").write_bytes(dump)

    # After a lost connection.

    def _lost_peer(self) -> str:
        store, number = self._last, self._round
        if store is None:
            return ""
        try:
            store.set(f"gone/{self._rank}", "")
            asking = self._ask(store, number)
            answers = self._answers(
                store, number, LAST_WORDS_SECONDS, until=lambda: store.check(["lost"]) or bool(self._farewells(store))
            )
            words: str = store.compare_set("lost", "", self._words_of_loss(store, answers)).decode()
            if asking:
                store.set(f"verdict/{number}", "")
            self._leave_together(store, number, LAST_WORDS_SECONDS / 2)
        except RuntimeError:
            return "rank 0 is gone and took the store along that ranks meet in; if it lost a peer, it says which"
        return words

    def _words_of_loss(self, store: Store, answers: Mapping[int, Place]) -> str:
        if farewells := self._farewells(store):
            return "; ".join(f"rank {rank} ended: {words}" for rank, words in farewells.items())
        seen = self._places(store, "seen").values()
        silent = [p for p in seen if p.rank not in answers and not store.check([f"gone/{p.rank}"])]
        return verdict.does_not_answer(silent) if silent else "all ranks answer, so the network between them broke"

    # What the ranks tell each other.

    def _place(self) -> Place:
        mark = self._timeline.mark
        return Place(
            rank=self._rank,
            host=socket.gethostname(),
            step=mark.step,
            phase=mark.phase,
            idle_seconds=time.monotonic() - mark.since,
            limit_seconds=self._limits.of(mark.phase, past_first_step=self._timeline.past_first_step),
            num_collectives=sum(map(_num_collectives, _groups(default=True))),
            num_control_collectives=sum(map(_num_collectives, _groups(default=False))),
        )

    def _note(self) -> None:
        self._notes.set(f"seen/{self._rank}", self._place().to_json())

    def _answers(self, store: Store, number: int, seconds: float, until: Callable[[], bool] = bool) -> dict[int, Place]:
        """The places of those that answer in time, by rank. `until` may end the wait sooner; by default it does not."""
        keys = [f"answer/{number}/{rank}" for rank in range(self._world_size)]
        _poll(lambda: store.check(keys) or until(), seconds)
        return self._places(store, f"answer/{number}")

    def _places(self, store: Store, folder: str) -> dict[int, Place]:
        """What ranks wrote there, by rank."""
        keys = {rank: f"{folder}/{rank}" for rank in range(self._world_size)}
        return {rank: Place.from_json(store.get(key)) for rank, key in keys.items() if store.check([key])}

    def _farewells(self, store: Store) -> dict[int, str]:
        """What ranks said that ended of a cause of their own; of many, the first few."""
        gone = {rank: f"gone/{rank}" for rank in range(self._world_size) if store.check([f"gone/{rank}"])}
        said = ((rank, words) for rank, key in gone.items() if (words := store.get(key).decode()))
        return dict(islice(said, MAX_FAREWELLS))

    @property
    def _answer_seconds(self) -> float:
        return min(ANSWER_SECONDS, self._limits.step_seconds)

    def _start(self, target: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=target, name="watchdog", daemon=True)
        thread.start()
        return thread


def _groups(*, default: bool) -> list[dist.ProcessGroup]:
    """The default group, or the others (the control group); none before they are made. Every rank is in all of them."""
    return [group for group in tuple(distributed_c10d._world.pg_map) if (group is dist.group.WORLD) is default]


def _num_collectives(group: dist.ProcessGroup) -> int:
    """Collectives of the group that this rank has begun; 0 where the backend does not count."""
    try:
        return int(group._get_sequence_number_for_group())  # type: ignore[attr-defined]
    except RuntimeError:
        return 0


def _poll(true: Callable[[], bool], seconds: float) -> None:
    """Until it is true, or for so long."""
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _stacks() -> str:
    """The Python stacks of all threads but the watchdog's own, the main thread first."""
    threads = sorted(threading.enumerate(), key=lambda thread: thread is not threading.main_thread())
    frames = sys._current_frames()
    return "".join(
        f"thread {thread.name}\n{''.join(traceback.format_stack(frames[thread.ident]))}"
        for thread in threads
        if thread.ident in frames and thread.name != "watchdog"
    )
