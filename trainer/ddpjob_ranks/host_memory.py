"""How much memory a process may still use."""

import re
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def available_bytes(cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> int:
    """Bytes that the memory limit of the container (cgroup version 2) and the host leave; 0 or less if none.

    Cached files are not counted as used, since the kernel frees them first. Memory that processes share is.
    """
    available = int(_numbers(meminfo)["MemAvailable"]) * 1024
    try:
        limit = int((cgroup / "memory.max").read_text(encoding="ascii"))
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        cached = _numbers(cgroup / "memory.stat")
    except (OSError, ValueError):  # no such files, or "max"
        return available
    return min(available, limit - used + cached["active_file"] + cached["inactive_file"])


def _numbers(path: Path) -> dict[str, int]:
    """The first number of each line, by its name."""
    return {name: int(value) for name, value in re.findall(r"(?m)^(\w+):?\s+(\d+)", path.read_text(encoding="ascii"))}
