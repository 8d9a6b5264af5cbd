"""Metrics that a script reports, from the call to the log line of their own step."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping

import torch

from ddpjob_session.host_values import HostValues

#: A metric is shown at most once in this time, so that scripts can report it in each step.
REPORT_SECONDS = 1.0


class Reported:
    """Shows metrics now and then, those of a checkpoint and of the last step always.

    A tensor on a GPU is read when the next step is done, so that the GPU does not wait for the host.
    """

    def __init__(self, show: Callable[[Mapping[str, float], int], None], device: torch.device) -> None:
        self._show = show
        self._device = device
        self._shown_at: dict[str, float] = {}
        self._due = deque[HostValues]()
        self._held_step = 0
        self._held: dict[str, float | torch.Tensor] = {}  # of the newest step, as far as they are not due

    def add(self, metrics: Mapping[str, float | torch.Tensor], *, step: int, is_last: bool) -> None:
        """Take the metrics of a step, and show them if they are due and need not be waited for."""
        if step != self._held_step:
            self._held_step, self._held = step, {}
        now = time.monotonic()
        recent = all(now - self._shown_at.get(name, -math.inf) < REPORT_SECONDS for name in metrics)
        # The script may change its tensor before it is shown.
        self._held |= {
            name: value if isinstance(value, int | float) else torch.as_tensor(value).detach().clone()
            for name, value in metrics.items()
        }
        if is_last or not recent:
            self._shown_at.update(dict.fromkeys(metrics, now))
            self._held_is_due()
            self.show(before=math.inf if self._due and self._due[-1].are_here else step)

    def show(self, *, before: float) -> None:
        """Show what is due of the steps before this one."""
        while self._due and self._due[0].step < before:
            values = self._due.popleft()
            self._show(values.read(), values.step)

    def show_all(self) -> None:
        """Show what is due, and the newest step's metrics."""
        self._held_is_due()
        self.show(before=math.inf)

    def _held_is_due(self) -> None:
        if self._held:
            self._due.append(HostValues(self._held_step, self._held, self._device))
            self._held = {}
