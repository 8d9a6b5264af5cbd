"""Stopping on request: any rank's SIGTERM makes all ranks stop after the same step.

The flag of each step travels while the next one is computed, so agreeing costs no wait of its own and no GPU
synchronisation; a request is honoured one step after it was made.
"""

import faulthandler
import signal
from types import FrameType

import torch
import torch.distributed as dist

from ddpjob_ranks.distributed import Gang


class StopRequest:
    """Becomes true when this process receives SIGTERM, which also dumps the stacks of all threads to stderr.

    The dump is written by the signal itself, so it comes even when the main thread hangs in a collective.
    """

    def __init__(self) -> None:
        self.received = False
        signal.signal(signal.SIGTERM, self._receive)
        # Known risk: it reads the threads' stacks without a lock, so it may crash where one ends at that moment
        # (python/cpython#116008). A dump by Python code, as the watchdog's, would need the interpreter's lock.
        faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self.received = True


class StopAgreement:
    """Asks all ranks, between any two steps and within an evaluation, whether any was told to stop."""

    def __init__(self, gang: Gang, request: StopRequest) -> None:
        self._gang = gang
        self._request = request
        self._in_flight: tuple[dist.Work, torch.Tensor] | None = None
        self._agreed = False

    def reached(self) -> bool:
        """Whether to stop now: the same answer on every rank, and once yes, always yes.

        To be called by all of them at the same points: each step boundary, each batch of an evaluation.
        """
        self._take_answer()
        if not self._agreed:
            flag = torch.tensor([self._request.received], dtype=torch.int32)
            work = dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._gang.control, async_op=True)
            assert work is not None
            self._in_flight = (work, flag)
        return self._agreed

    def finish(self) -> None:
        """Wait for the question still on its way; training is over and its answer does not matter."""
        self._take_answer()

    def _take_answer(self) -> None:
        if self._in_flight is not None:
            work, flag = self._in_flight
            work.wait()
            self._in_flight = None
            self._agreed = bool(flag.item())
