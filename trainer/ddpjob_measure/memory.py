"""How much memory a rank took at most."""

import re
from pathlib import Path

import torch


def peak_bytes(device: torch.device) -> int:
    """On a GPU what its tensors took; else the resident memory of this process and its children, shared pages and all."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    children = (pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split())
    return sum(_resident_peak_bytes(pid) for pid in ("self", *children))


def _resident_peak_bytes(pid: str) -> int:
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc", pid, "status").read_text(encoding="utf-8"))
    except OSError:  # it has ended
        return 0
    return int(found[1]) * 1024 if found else 0
