"""All that a figure depends on: machine, versions, load and date."""

import datetime
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from ddpjob_ranks.cpus import available_cpus

#: What figures depend on.
PACKAGES = ("torch", "torchvision", "numpy")


def surroundings() -> dict[str, str | int | float]:
    """As flat facts, for the head of a table and for its JSON."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "load_average_at_start": round(os.getloadavg()[0], 2),
        "cpu": _first(r"model name\s*: (.*)", "/proc/cpuinfo") or platform.machine(),
        "cores": available_cpus(),
        "memory_gib": round(int(_first(r"MemTotal:\s+(\d+)", "/proc/meminfo") or 0) / 2**20),
        "gpus": ", ".join(_gpus()) or "none",
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
    }


def headline(facts: dict[str, str | int | float]) -> str:
    """The facts in one line."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())


def _gpus() -> list[str]:
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # copied to the machine without its metadata
        return "unknown"


def _first(pattern: str, path: str) -> str | None:
    match = re.search(pattern, Path(path).read_text(encoding="utf-8"))
    return match[1] if match else None
