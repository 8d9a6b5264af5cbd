"""How long the phases of one step take on the device."""

import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

import torch

from ddpjob_ranks.watch.timeline import Phase, Timeline


class StepTimer:
    """Moves the timeline through one step and, if `exact`, times its phases on the device.

    On a GPU the times are those between CUDA events, read only when asked for, so no step waits for its timing. (CUDA
    events are written with care and have run on no GPU yet.)
    """

    def __init__(
        self,
        device: torch.device,
        *,
        exact: bool,
        timeline: Timeline | None = None,
        now: Callable[[], float | torch.cuda.Event] | None = None,
    ) -> None:
        self._now = now or (_cuda_now if device.type == "cuda" else time.monotonic)
        self._exact = exact
        self._timeline = timeline or Timeline()
        self._moments: list[tuple[Phase, float | torch.cuda.Event]] = []
        self._gradients_ready: float | torch.cuda.Event | None = None

    def enter(self, phase: Phase, *, step: int | None = None) -> None:
        """The step comes to a phase; its end is the beginning of another. `step` is the number of steps done."""
        self._timeline.enter(phase, step=step)
        if self._exact:
            self._moments.append((phase, self._now()))

    def watch_gradients(self, loss: torch.Tensor) -> None:
        """Note when the last gradient of the loss's backward pass is computed, before it is summed over ranks.

        What remains of the pass from there on is communication that no computation hides, and waiting for ranks that
        are slower. Autograd runs what is queued in a pass after all gradients, in the order of queueing: this is queued
        first, DDP's wait for the all-reduces with its last bucket. No hook on parameters, which costs more (62 of them:
        0.5 to 0.8 ms of CPU time a pass).
        """
        if self._exact:
            queue = torch.autograd.Variable._execution_engine.queue_callback
            loss.register_hook(lambda _: queue(self._note_gradients))  # type: ignore[no-untyped-call]

    def _note_gradients(self) -> None:
        self._gradients_ready = self._now()

    def seconds(self) -> dict[Phase, float]:
        """Device time of each phase that has ended; empty unless `exact`. On a GPU it waits for the last of them."""
        seconds: defaultdict[Phase, float] = defaultdict(float)
        for (phase, began), (_, ended) in pairwise(self._moments):  # a phase comes once for each part of the batch
            seconds[phase] += _between(began, ended)
        return seconds

    @property
    def exposed_seconds(self) -> float:
        """The part of the backward pass after this rank's last gradient; 0 where it was not watched."""
        ended = next((moment for phase, moment in self._moments if phase is Phase.OPTIMIZER), None)
        if self._gradients_ready is None or ended is None:
            return 0.0
        return _between(self._gradients_ready, ended)


def _cuda_now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _between(began: float | torch.cuda.Event, ended: float | torch.cuda.Event) -> float:
    if isinstance(began, torch.cuda.Event):
        assert isinstance(ended, torch.cuda.Event), "both of one device"
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1e3
    assert isinstance(ended, float), "both of one device"
    return ended - began
