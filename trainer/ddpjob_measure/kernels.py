"""Which kernels one step spends its time in, by torch's profiler."""

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

#: So many kernels are listed.
NUM_LISTED = 15


def top(take_step: Callable[[], object], device: torch.device) -> list[dict[str, str | int | float]]:
    """The kernels of one step (operations on a CPU) with the most time of their own; shares are of all kernels' time."""
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as found:
        take_step()
        if on_gpu:
            torch.cuda.synchronize(device)
    # Ranges with a name, such as that of the optimizer's step, are events of the GPU too, and hold kernels.
    events = [
        event
        for event in found.key_averages()
        if not on_gpu or (event.device_type.name == "CUDA" and not event.is_user_annotation)
    ]
    microseconds = [event.self_device_time_total if on_gpu else event.self_cpu_time_total for event in events]
    total = sum(microseconds) or 1.0
    ranked = sorted(zip(microseconds, events, strict=True), key=lambda pair: -pair[0])[:NUM_LISTED]
    return [
        {"kernel": event.key, "calls": event.count, "milliseconds": spent / 1e3, "share": spent / total}
        for spent, event in ranked
    ]
