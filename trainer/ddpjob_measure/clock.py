"""Where a step's time goes, taken from outside: hooks on the model, its parameters and the optimizer.

The step itself is not touched, so any program's can be timed: ours and the plain one alike. On a GPU a moment is an event
in the stream, so nothing waits while steps run; on a CPU it is the clock.
"""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from ddpjob_measure.task import PARTS

Mark = float | torch.cuda.Event

#: The moments that part a step, in their order; `data` lies between the first two, and so on. The last part, `host`,
#: ends where the next step begins.
MOMENTS = ("begin", "forward", "last_gradient", "update", "updated")
assert len(MOMENTS) == len(PARTS)


class StepClock:
    """Times the parts of the steps that run between `begin_step()` calls.

    - data: from the beginning of the step to the call of the model
    - forward_backward: from there until the last gradient has been computed
    - exposed_communication: from there until the optimizer is called, which DDP allows once all buckets are reduced; also
      the wait for ranks that are behind
    - optimizer: its step
    - host: from there to the beginning of the next step
    """

    def __init__(self, device: torch.device, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._device = device
        self._steps: list[dict[str, Mark]] = []
        self._handles: list[Any] = [
            model.register_forward_pre_hook(lambda *_: self._mark("forward")),
            optimizer.register_step_pre_hook(lambda *_: self._mark("update")),
            optimizer.register_step_post_hook(lambda *_: self._mark("updated")),
        ]
        for (
            parameter
        ) in model.parameters():  # gradients come in the order of backward; the last one overwrites the others
            if parameter.requires_grad:
                handle = parameter.register_post_accumulate_grad_hook(lambda _: self._mark("last_gradient"))  # type: ignore[no-untyped-call]
                self._handles.append(handle)

    def begin_step(self) -> None:
        """The step before this one, if any, has ended here."""
        self._steps.append({})
        self._mark("begin")

    def take(self) -> list[dict[str, float]]:
        """Seconds of each part of each step since the last call; the step that `begin_step` opened last ends here.

        Raises:
            RuntimeError: a step left out a moment.
        """
        self.begin_step()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        steps, self._steps = self._steps, []
        return [_parts(step, following["begin"]) for step, following in pairwise(steps)]

    def close(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()

    def _mark(self, moment: str) -> None:
        if self._steps:
            self._steps[-1][moment] = now(self._device)


def now(device: torch.device) -> Mark:
    """This moment: of the device's current stream, or of the CPU."""
    if device.type != "cuda":
        return time.perf_counter()
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def seconds_between(start: Mark, end: Mark) -> float:
    """Seconds from one moment to a later one; both events must have happened."""
    if isinstance(start, torch.cuda.Event):
        assert isinstance(end, torch.cuda.Event)
        return float(start.elapsed_time(end)) / 1e3
    assert isinstance(end, float)
    return end - start


def _parts(step: dict[str, Mark], end: Mark) -> dict[str, float]:
    missing = [moment for moment in MOMENTS if moment not in step]
    if missing:
        raise RuntimeError(f"a step passed without {', '.join(missing)}: its model or optimizer calls no hooks")
    marks = [*(step[moment] for moment in MOMENTS), end]
    return {part: seconds_between(*between) for part, between in zip(PARTS, pairwise(marks), strict=True)}


def mean_parts(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Each part's mean over steps; the means sum to the mean step."""
    return {part: sum(step[part] for step in steps) / len(steps) for part in PARTS}
