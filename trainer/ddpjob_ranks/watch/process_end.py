"""Ends the process of a rank that hangs: its state is saved, and the diagnosis, its stacks and torch's records are written."""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import torch
from torch._C import _distributed_c10d as c10d  # torch.distributed's own, which it exports untyped

from ddpjob_ranks import contract, generation, stacks, termination
from ddpjob_ranks.launch import launcher
from ddpjob_ranks.regular_files import no_link
from ddpjob_ranks.watch.diagnosis import RankStatus

THREAD_NAME = "watchdog"
FLIGHT_RECORDER = "flight-recorder-{backend}-{rank}"


def end_process(
    message: str,
    *,
    rank: int,
    status: Callable[[], RankStatus],
    silence_seconds: float,
    announced_here: bool = True,
    leave: Callable[[], None] | None = None,
) -> NoReturn:
    """Write the diagnosis and the stacks and end the process; `leave` waits for the other ranks first.

    What writes or waits may hang itself, so each part has `silence_seconds`.
    """
    if (current := generation.current(os.environ)) is not None:
        # A part of the user's may wait for what the main thread holds, or that thread may save and not end.
        _end_after(launcher.SAVE_SECONDS + silence_seconds)
        current.save()
    # What reads stderr may have stopped, which may be why all ranks hang.
    _end_after(silence_seconds)
    try:
        termination.write(f"rank {rank}\n{message}", echo=False)
        announcement = f"ddpjob watchdog: {message}\n" if announced_here else ""
        sys.stderr.write(f"{announcement}ddpjob stacks: rank {rank}, {status()}\n")
        sys.stderr.write(stacks.of_all_threads(without=[THREAD_NAME]))
        sys.stderr.flush()
        _dump_flight_recorder(rank)
        if leave is not None:
            leave()
    finally:
        os._exit(contract.EXIT_HUNG)


def _end_after(seconds: float) -> None:
    last_resort = threading.Timer(seconds, os._exit, (contract.EXIT_HUNG,))
    last_resort.daemon, last_resort.name = True, THREAD_NAME
    last_resort.start()


def _dump_flight_recorder(rank: int) -> None:
    """What torch recorded of the last collectives, for torchfrtrace (that of NCCL has run on no GPU yet)."""
    if folder := os.environ.get(contract.DDPJOB_EVENTS_DIR):
        dumps: dict[str, bytes] = {}
        if hasattr(c10d, "_dump_fr_trace"):  # which older releases have not
            dumps["gloo"] = c10d._dump_fr_trace()
        if torch.cuda.is_available():
            dumps["nccl"] = c10d._dump_nccl_trace()  # type: ignore[attr-defined] # not in its stubs
        for backend, dump in dumps.items():
            path = Path(folder) / FLIGHT_RECORDER.format(backend=backend, rank=rank)
            with suppress(OSError), open(path, "wb", opener=no_link) as file:
                file.write(dump)
