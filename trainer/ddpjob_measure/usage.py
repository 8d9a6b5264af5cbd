"""The memory and the CPU time that a rank took, its DataLoader workers included."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch


def peak_bytes(device: torch.device) -> int:
    """On a GPU what its tensors took; else the resident memory of this process and its children, shared pages and all."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return sum(_resident_peak_bytes(pid) for pid in _processes())


def cpu_seconds() -> float:
    """User and system time of this process and its children so far. Other programs of a busy machine hardly change it."""
    return sum(map(_cpu_ticks, _processes())) / os.sysconf("SC_CLK_TCK")


def _processes() -> Iterator[str]:
    yield "self"
    for path in Path("/proc/self/task").glob("*/children"):
        yield from path.read_text().split()


def _cpu_ticks(pid: str) -> int:
    try:
        fields = Path("/proc", pid, "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:  # it has ended
        return 0
    return int(fields[11]) + int(fields[12])


def _resident_peak_bytes(pid: str) -> int:
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc", pid, "status").read_text(encoding="utf-8"))
    except OSError:  # it has ended
        return 0
    return int(found[1]) * 1024 if found else 0
