"""Values of a step on their way to the host."""

from collections.abc import Mapping

import torch


class HostValues:
    """Numbers, some of which a GPU may still have to compute. They are read once the next step is in its queue, which would run empty otherwise."""

    def __init__(self, step: int, values: Mapping[str, float | torch.Tensor], device: torch.device) -> None:
        self.step = step
        # A copy to the host that does not block is one to pinned memory.
        self._values = {
            name: value.detach().to("cpu", non_blocking=True) if isinstance(value, torch.Tensor) else value
            for name, value in values.items()
        }
        self._copied = _event() if device.type == "cuda" else None

    @property
    def are_here(self) -> bool:
        """Whether nothing has to be waited for."""
        return self._copied is None

    def read(self) -> dict[str, float]:
        """The numbers, by name. Waits for the GPU up to where they were taken, no further."""
        if self._copied is not None:
            self._copied.synchronize()
        return {name: float(value) for name, value in self._values.items()}


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event
