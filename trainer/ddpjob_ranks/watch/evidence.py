"""One JSON file for each run: what ran, on what, how long it took and what came out. Written by rank 0 at the end."""

import json
import os
import platform
import socket
import subprocess
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddpjob_ranks import contract
from ddpjob_ranks.launch.identity import attempt
from ddpjob_ranks.regular_files import no_link
from ddpjob_ranks.watch import history
from ddpjob_ranks.watch.timeline import Timeline

#: A GPU that does not answer in this time has no facts in the table of ranks. All ranks of a node ask at once.
NVIDIA_SMI_SECONDS = 10.0


def versions() -> dict[str, str | None]:
    """The versions of everything that can change a result."""
    cuda = torch.cuda.is_available()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "cuda": torch.version.cuda,
        "cudnn": str(torch.backends.cudnn.version()) if cuda else None,  # type: ignore[no-untyped-call]
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,  # type: ignore[no-untyped-call]
    }


def hardware(device: torch.device) -> dict[str, object]:
    """The hardware of this rank."""
    models = [line for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if "model name" in line]
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return {
        "host": socket.gethostname(),
        "cpu": models[0].partition(":")[2].strip() if models else platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu.name if gpu else None,
        "gpu_bytes": gpu.total_memory if gpu else None,
        "gpu_peak_bytes": torch.cuda.max_memory_allocated(device) if gpu else None,
        **(nvidia_smi(str(gpu.uuid)) if gpu else {}),
    }


@cache
def nvidia_smi(uuid: str) -> Mapping[str, str]:
    """What torch does not know of a GPU: driver and power limit. Empty where nvidia-smi is missing or knows no such GPU."""
    command = ["nvidia-smi", f"--id=GPU-{uuid}", "--format=csv,noheader", "--query-gpu=driver_version,power.limit"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = answer.stdout.strip().split(", ")
    return dict(zip(("gpu_driver", "gpu_power_limit"), values, strict=True)) if len(values) == 2 else {}


def device_name(device: torch.device) -> str:
    """The device in words, such as "NVIDIA H200, 140 GiB, driver 580.65.06, 700.00 W"."""
    if device.type != "cuda":
        return str(device)
    gpu = torch.cuda.get_device_properties(device)
    facts = nvidia_smi(str(gpu.uuid))
    known = [gpu.name, f"{gpu.total_memory / 2**30:.0f} GiB"]
    if facts:
        known += [f"driver {facts['gpu_driver']}", facts["gpu_power_limit"]]
    return ", ".join(known)


def write(timeline: Timeline, environ: Mapping[str, str], **facts: Any) -> Path | None:
    """Write the facts, with both clocks and the checkpoints' stalls; None where DDPJOB_EVENTS_DIR names no folder.

    The file is `attempt-1-evidence.json`: a run that stops and continues has one for each attempt.
    """
    folder = environ.get(contract.DDPJOB_EVENTS_DIR)
    if not folder:
        return None
    number = attempt(environ)
    now = time.monotonic()
    content = {
        "job": environ.get(contract.DDPJOB_NAME),
        "attempt": number,
        "ended_at_unix_seconds": time.time(),
        "seconds_since_process_start": now - timeline.began,
        "seconds_of_training": now - timeline.training_began if timeline.training_began is not None else None,
        "checkpoint_stalls_seconds": timeline.checkpoint_stalls_seconds,
        "versions": versions(),
        **facts,
    }
    path = Path(folder) / f"attempt-{number}-evidence.json"
    try:
        content["history"] = history.read(path.parent)
        with open(path, "w", encoding="utf-8", opener=no_link) as file:
            file.write(json.dumps(content, indent=2) + "\n")
    except OSError:  # reported when the spans could not be written either; it does not end the training
        return None
    return path
