"""Stopping on request: a SIGTERM of any rank makes all ranks stop after the same step.

Ranks ask each other between steps whether any of them was asked to stop, by an all-reduce over the control group, which
needs no GPU synchronisation. gloo's all-reduce is a ring of 2(n-1) hops: 25 ms on 256 ranks with 50 us a hop.

- Where a step takes at least WAIT_RATIO times as long as a question, ranks wait for the answer in the call that asks, so
  a request is honoured after the step in which it arrives.
- Where steps are shorter, the question travels while training continues, and its answer is taken when the next one is
  asked. Ranks then ask in every k-th call only, with k large enough for the answer to be there by then. A request is
  honoured after at most 2 k calls.

All ranks do the same, because each decides by the same numbers: how long a question took when they measured it at the
start, and the time between two calls, which travels with each question. Since they call equally often, they ask the same
questions and get the same answers.

Only calls between steps decide: batches of an evaluation may follow each other a thousand times faster than steps.
"""

import math
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

import torch
import torch.distributed as dist

from ddpjob_ranks import children, contract, stacks
from ddpjob_ranks.distributed import Gang

#: Questions at the start that are timed; the fastest counts. The one before them waits for the last rank to come.
NUM_TIMED: Final = 3
#: An answer is expected this much later than it took at the start, when ranks had nothing else to do.
MARGIN: Final = 2.0
#: The wait in each call then costs at most 1 % of a step.
WAIT_RATIO: Final = 100.0
#: Bounds the steps until a request is honoured, also where steps suddenly take much longer than before.
MAX_INTERVAL: Final = 16
#: Name of the thread that writes stacks, which does not appear among them.
THREAD_NAME: Final = "stop request"


class StopRequest:
    """Becomes true when this process receives SIGTERM, whose stacks of all threads it then writes to stderr.

    A thread of its own writes them, so they come even while the main thread hangs in a collective, which releases the
    interpreter's lock. While other code holds that lock, nothing is written. (`faulthandler.register` needs no lock,
    but reads stacks that change meanwhile: it ended the process of test_stop.py by SIGSEGV in 5 of 5 runs.)
    """

    def __init__(self) -> None:
        self.received = False
        signal.signal(signal.SIGTERM, self._receive)
        reader, writer = socket.socketpair()
        writer.setblocking(False)  # as set_wakeup_fd requires
        self._writer = writer  # closed with this object
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        children.end_on_sigterm()
        children.never_outstay()
        threading.Thread(target=_write_stacks, args=(reader,), name=THREAD_NAME, daemon=True).start()

    def ignore(self) -> None:
        """From now on SIGTERM has no effect on this process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self.received = True


def _write_stacks(signals: socket.socket) -> None:
    """Write the stacks whenever a SIGTERM arrives: the interpreter sends each signal's number as a byte."""
    while received := signals.recv(64):
        if signal.SIGTERM in received:
            sys.stderr.write(f"{contract.STACKS_AT_STOP}\n{stacks.of_all_threads(without=[THREAD_NAME])}")
            sys.stderr.flush()


class StopAgreement:
    """Whether all ranks stop now because any of them was asked to.

    Args:
        question_seconds: How long a question takes, the same on all ranks. By default they measure it.
        save_due: Whether this rank wants all ranks to save. They agree on that in the same questions (`save_agreed`).
        copy_due: Whether this rank is ready to copy the state in memory again (`copy_agreed`).
        gradients_kept: Whether this rank has kept gradients from one step to the next (`gradients_kept_anywhere`).
        clock: Seconds.
    """

    def __init__(
        self,
        gang: Gang,
        request: StopRequest,
        *,
        question_seconds: float | None = None,
        save_due: Callable[[], bool] = lambda: False,
        copy_due: Callable[[], bool] = lambda: False,
        gradients_kept: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gang = gang
        self.request = request
        self._clock = clock
        self._question_seconds = _measured(gang) if question_seconds is None else question_seconds
        self._in_flight: tuple[dist.Work, torch.Tensor, bool] | None = None
        self._asked_at = -math.inf
        self._num_calls = 0  # since then
        self._num_asked_within = 0  # by `ask_now`, since the last step
        self._interval = 1
        self._waits = True  # until the time of a step is known, which the second question brings
        self._agreed = False
        self._save_due = save_due
        self.save_agreed = False
        """Whether some rank wanted to save. Whoever saves sets it to False, on all ranks after the same call of `reached`."""
        self._copy_due = copy_due
        self.copy_agreed = False
        """Whether all ranks are ready to copy the state. Whoever copies sets it to False, in the same way."""
        self._gradients_kept = gradients_kept
        self.gradients_kept_anywhere = False
        """Whether some rank has ever kept gradients from one step to the next."""

    def reached(self, *, ask_now: bool = False) -> bool:
        """Whether to stop now: the same answer on every rank, and once it is yes, always yes.

        All ranks call it at the same points: each step boundary, each batch of an evaluation. `ask_now` asks in this
        call, for places where calls are not steps; how far apart they are says nothing about steps.
        """
        self._num_calls += 1
        self._num_asked_within = self._num_asked_within + 1 if ask_now else 0
        if not self._agreed and (ask_now or self._num_calls >= self._interval):
            self._take_answer()
            if not self._agreed:
                self._ask(measures_steps=not ask_now)
                if self._waits and not ask_now:
                    self._take_answer()
        return self._agreed

    def finish(self) -> None:
        """Wait for the question that is still on its way; training is over and its answer does not matter."""
        self._take_answer()

    def _ask(self, *, measures_steps: bool) -> None:
        now = self._clock()
        seconds_per_call = (now - self._asked_at) / self._num_calls
        save = self._save_due() and not self.save_agreed
        # The answer is the largest value of all ranks: 1 where any of them wants to save, and where any is not ready to copy.
        lacks_copy = self.copy_agreed or not self._copy_due()
        place = float(self._num_asked_within)
        flags = [self.request.received, save, lacks_copy, self._gradients_kept()]
        values = [*map(float, flags), seconds_per_call, place, -place]
        question = torch.tensor(values, dtype=torch.float64, device="cpu")
        self._in_flight = (self._gang.begin_max(question), question, measures_steps)
        self._asked_at, self._num_calls = now, 0

    def _take_answer(self) -> None:
        if self._in_flight is not None:
            work, answer, measures_steps = self._in_flight
            began = self._clock()
            work.wait()
            self._asked_at += self._clock() - began  # the wait is not part of a step
            self._in_flight = None
            requested, save, lacks_copy, gradients_kept, seconds_per_call, furthest, nearest = answer.tolist()
            if furthest != -nearest:
                raise RuntimeError(
                    f"some rank asked whether to stop for the {furthest:.0f}th time within an evaluation, another one for the"
                    f" {-nearest:.0f}th time or after it: all ranks must ask equally often, whatever their share of the data"
                )
            self._agreed = bool(requested)
            self.save_agreed |= bool(save)
            self.copy_agreed |= not lacks_copy
            self.gradients_kept_anywhere |= bool(gradients_kept)
            if measures_steps:
                self._interval = interval(self._question_seconds, seconds_per_call)
                self._waits = seconds_per_call >= WAIT_RATIO * self._question_seconds


def interval(question_seconds: float, seconds_per_call: float) -> int:
    """In which call after a question to ask the next one, so that its answer is there by then."""
    return min(MAX_INTERVAL, max(1, math.ceil(MARGIN * question_seconds / max(seconds_per_call, 1e-9))))


def _measured(gang: Gang) -> float:
    """How long a question takes, in seconds, the same number on all ranks."""
    seconds = torch.full((2,), math.inf, dtype=torch.float64, device="cpu")
    for number in range(1 + NUM_TIMED):
        began = time.monotonic()
        gang.begin_max(torch.zeros(4, dtype=torch.float64)).wait()
        if number > 0:
            seconds.clamp_(max=time.monotonic() - began)
    gang.begin_max(seconds).wait()
    return float(seconds[0])
