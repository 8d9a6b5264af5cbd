"""Ends a run that makes no progress, with a diagnosis: which rank is late, and where.

Each rank's main thread moves a mark (`timeline`). A rank whose mark has not moved for longer than its phase allows calls
a round (`board`), in which all ranks report their status. If no rank at all makes progress, the round ends with a
diagnosis; each rank writes it with its Python stacks and exits with EXIT_HUNG.

Two threads on each rank. The monitor decides what to do about this rank's own mark (`idleness`); it never waits for the
store. The listener takes part in rounds, and does. The store's server is a thread without Python, so both work while
main threads hang in collectives or in endless loops. A rank that cannot run Python (stopped, or held by code that keeps
the interpreter's lock) does not answer, which is its diagnosis.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from itertools import islice
from typing import Any, NoReturn, Self

from torch._C._distributed_c10d import Store  # torch.distributed's own, which it exports untyped

from ddpjob_ranks import contract
from ddpjob_ranks.distributed import Gang
from ddpjob_ranks.launch.identity import Worker
from ddpjob_ranks.limits import Limits
from ddpjob_ranks.watch.board import GO_ON, POLL_SECONDS, Board
from ddpjob_ranks.watch.collectives import Collectives
from ddpjob_ranks.watch.diagnosis import RankStatus, diagnose, unresponsive
from ddpjob_ranks.watch.idleness import Action, Idleness, Timing
from ddpjob_ranks.watch.process_end import THREAD_NAME, end_process
from ddpjob_ranks.watch.timeline import Phase, Timeline

#: Largest number of ranks named of those that ended by a cause of their own.
MAX_FAILURES = 2


class Watchdog:
    """Watches this rank from `watch`, which all ranks call after the rendezvous, to the end of its `with` block."""

    def __init__(
        self,
        limits: Limits,
        timeline: Timeline,
        *,
        timing: Timing | None = None,
        collectives: Collectives | None = None,
        end: Callable[..., NoReturn] = end_process,
    ) -> None:
        self._limits = limits
        self._timeline = timeline
        self._timing = timing or Timing.of(limits)
        self._collectives = collectives or Collectives()
        self._end_process = end
        self._closed = threading.Event()
        self._ending = threading.Event()
        self._publishing = threading.Lock()
        self.num_rounds = 0
        """Rounds that have ended on this rank."""
        self._idleness = Idleness.starting(timeline.mark.since, time.monotonic())  # the monitor's
        self._board: Board | None = None  # until the rendezvous
        self.num_calls = 0
        """Calls of the session before the loop in which all ranks take part, as the session counts them."""
        self.aborted_collectives = False
        """Whether it aborted the collectives of this rank because another rank failed; any error after that is an echo."""

    def watch(self, store: Store, worker: Worker) -> None:
        """Begin. `store` is that of the rendezvous; no process group is needed yet."""
        self._rank = worker.rank
        self._board, listening = (
            Board(store, rank=worker.rank, world_size=worker.world_size, timing=self._timing) for _ in range(2)
        )
        self._publish(self._board)
        self._listener = _start(self._listen, listening)
        self._monitoring = _start(self._monitor, self._board)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None or self._board is None:
            return  # the process is about to end, and answers until then
        self._timeline.enter(Phase.END)
        self._closed.set()
        with contextlib.suppress(RuntimeError):  # rank 0 may have ended already, and the store with it
            self._publish(self._board)
            self._board.close(self.num_rounds)
        # A thread that is within the store when the interpreter ends would abort the process.
        for thread in (self._listener, self._monitoring):
            thread.join(self._timing.answer_seconds)
        with contextlib.suppress(RuntimeError):
            self._board.leave(self._timing.answer_seconds)

    @property
    def has_lost_collectives(self) -> bool:
        """Whether collectives of this rank on a GPU may have ended without a result, so that what follows in its queue is wrong."""
        return self.aborted_collectives or self._collectives.have_failed()

    def report_failure(self, cause: str) -> None:
        """Publish why this rank ends, before the others find out that it has ended.

        Main threads that wait for a GPU do not find out: NCCL's kernels wait for a rank on the same host without end. So
        a round lets the watchdogs of the other ranks act.
        """
        with contextlib.suppress(RuntimeError):
            if self._board is not None:
                self._board.publish_failure(cause)
                if self._collectives.on_gpu():
                    self._board.call(self.num_rounds)

    def wait_for_others(self, gang: Gang, *, is_early: bool) -> int | None:
        """Wait until all ranks are at the end of the training. `is_early` is before the last step of a loop.

        Returns None, or a rank that has gone on and waits for this one.
        """
        board = self._board
        if board is None:
            return None
        here = self._status()
        board.publish_arrival()
        arrived, looked_at = gang.begin_barrier(), time.monotonic()
        while not arrived.is_completed():
            time.sleep(POLL_SECONDS)
            if time.monotonic() - looked_at >= self._timing.tick_seconds:
                looked_at = time.monotonic()
                for rank, status in board.last_known().items():
                    if status.waits_for(here, is_early=is_early) and not board.has_arrived(rank):
                        return rank
        arrived.wait()
        return None

    def find_lost_rank(self) -> str:
        """Which rank is gone, for a rank that lost a connection; empty if that cannot be found out within a second.

        Does not return while the watchdog ends the process.
        """
        if self._ending.is_set():
            time.sleep(self._timing.silence_seconds)
        if (board := self._board) is None:
            return ""
        found: list[str] = []
        _start(lambda: found.append(self._lost_rank(board))).join(self._timing.search_seconds)
        return found[0] if found else ""

    # The monitor thread.

    def _monitor(self, board: Board) -> None:
        while not self._closed.wait(self._timing.tick_seconds) and not self._ending.is_set():
            action = self.look()
            with contextlib.suppress(RuntimeError):  # the store is gone: no round ends any more, which `act` notices
                self._publish(board)
                if action is Action.ASK:
                    board.call(self.num_rounds)
            if action is Action.END:
                self._end(
                    f"rank 0 (host {os.environ.get(contract.MASTER_ADDR)}) does not respond, which holds the store that"
                    f" all ranks use; rank {self._rank} waits {self._status()}"
                )

    def look(self) -> Action:
        """What this rank is to do about its own mark, as it is now."""
        mark = self._timeline.mark
        limit = self._limits.of(mark.phase, past_first_step=self._timeline.past_first_step)
        idleness = self._idleness.at(mark.since, time.monotonic(), self._timing)
        self._idleness, action = idleness.act(limit_seconds=limit, round_number=self.num_rounds, timing=self._timing)
        return action

    # The listener thread.

    def _listen(self, board: Board) -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone: then no round ends, which the monitor finds out
            while not self._closed.is_set() and board.wait_for_call(self.num_rounds):
                self._take_part(board, self.num_rounds)
                self.num_rounds += 1

    def _take_part(self, board: Board, number: int) -> None:
        """Answer, decide if this rank coordinates the round, and end with the others if that is the decision."""
        board.answer(number, self._status())
        self._abort_if_a_rank_failed(board)
        coordinates = board.coordinates(number)
        if coordinates:
            board.decide(number, self._diagnosis(board, number) or GO_ON)
        decision = board.decision(number, self._timing.decision_seconds)
        if decision != GO_ON:
            self._end(
                decision,
                announced_here=coordinates,
                leave=lambda: board.leave_together(number, self._timing.answer_seconds),
            )

    def _abort_if_a_rank_failed(self, board: Board) -> None:
        """Abort this rank's collectives on GPUs, so that its main thread continues and raises, if another rank failed."""
        if self.aborted_collectives or not self._collectives.on_gpu():
            return
        if board.failures().keys() - {self._rank}:
            self.aborted_collectives = True
            self._collectives.abort()

    def _diagnosis(self, board: Board, number: int) -> str | None:
        answers = board.answers(number, self._timing.answer_seconds)
        diagnosis = diagnose(answers, board.last_known())
        return None if diagnosis is None else "; ".join([*_causes(board.failures()), diagnosis])

    def _end(self, message: str, **how: Any) -> NoReturn:
        self._ending.set()
        silence_seconds = self._timing.silence_seconds
        self._end_process(message, rank=self._rank, status=self._status, silence_seconds=silence_seconds, **how)

    # After a lost connection.

    def _lost_rank(self, board: Board) -> str:
        number = self.num_rounds
        try:
            board.publish_failure("")
            board.call(number)
            answers = board.answers(
                number, self._timing.loss_seconds, until=lambda: board.loss_is_known() or any(board.failures().values())
            )
            failures = board.failures()
            silent = [s for s in board.last_known().values() if s.rank not in answers and s.rank not in failures]
            found = "; ".join(_causes(failures)) or (
                unresponsive(silent) if silent else "all ranks respond, so a network connection between them failed"
            )
            message = board.agree_on_loss(found)
            board.decide(number, GO_ON)  # its coordinator may be gone
            board.leave_together(number, self._timing.parting_seconds)
        except RuntimeError:
            return "rank 0 is gone, and with it the store that all ranks use; if it lost another rank, it reports which"
        return message

    # This rank.

    def _publish(self, board: Board) -> None:
        with self._publishing:  # the status of the end is the last one
            board.publish(self._status())

    def _status(self) -> RankStatus:
        mark = self._timeline.mark
        return RankStatus(
            rank=self._rank,
            host=socket.gethostname(),
            step=mark.step,
            phase=mark.phase,
            idle_seconds=self._idleness.at(mark.since, time.monotonic(), self._timing).idle.seconds,
            limit_seconds=self._limits.of(mark.phase, past_first_step=self._timeline.past_first_step),
            reported_at_unix_seconds=time.time(),
            num_collectives=self._collectives.num_begun(default=True),
            num_control_collectives=self._collectives.num_begun(default=False),
            num_started_by_gpu=self._collectives.num_started_by_gpu(),
            num_calls=self.num_calls,
        )


def _start(target: Callable[..., object], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, name=THREAD_NAME, daemon=True)
    thread.start()
    return thread


def _causes(failures: dict[int, str]) -> list[str]:
    """The first few ranks that ended by a cause of their own, each with it."""
    return list(islice((f"rank {rank} ended: {cause}" for rank, cause in failures.items() if cause), MAX_FAILURES))
