"""Checkpoints written behind the back of training: a copy of the state at the step boundary, the rest on a thread."""

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch

from ddpjob_ranks import contract
from ddpjob_trainer.checkpoints.folder import CheckpointFolder
from ddpjob_trainer.checkpoints.snapshot import HostCopy
from ddpjob_trainer.report import Reporter
from ddpjob_trainer.state import TrainingState, to_bytes

#: Longest wait for one checkpoint to reach the disk; the watchdog lets this phase stand still for 900 s by default.
WRITE_TIMEOUT_SECONDS = 600.0
#: The same on the way out of a failure: with the other last words it has to fit into the grace of the launcher
#: (`ddpjob_ranks.launch.launcher`).
LINGER_SECONDS = 3.0


class CheckpointWriter:
    """Saves one checkpoint at a time; without a folder (on every rank but 0, or where none is kept) it does nothing.

    What goes wrong on the thread (Fenced, OSError) is raised to training at its next step boundary, or at the end.
    """

    def __init__(self, folder: CheckpointFolder | None, report: Reporter, device: torch.device) -> None:
        self._folder = folder
        self._report = report
        self._copy = HostCopy(device)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-writer")
        self._in_flight: Future[None] | None = None
        self._newest_step: int | None = None

    def save(self, state: TrainingState) -> None:
        """Copy the state, once the save before it is through, and go on. A second save of one step does nothing."""
        if self._folder is None or state.step == self._newest_step:
            return
        with self._report.phase(contract.PHASE_CHECKPOINT):
            started = time.monotonic()
            self.wait()
            content = self._copy.take(state.content())
            stalled_seconds = time.monotonic() - started
        self._newest_step = state.step
        self._in_flight = self._thread.submit(self._write, self._folder, state.step, content, stalled_seconds)

    def check(self) -> None:
        """Raise what the thread met, if it met anything; to be called at each step boundary."""
        if self._in_flight is not None and self._in_flight.done():
            self._in_flight.result()

    def wait(self) -> None:
        """Until the last save is on the disk.

        Raises:
            TimeoutError: the storage has not taken it in WRITE_TIMEOUT_SECONDS.
            Fenced, OSError: it was not committed.
        """
        if self._folder is None or self._in_flight is None:
            return
        if not wait([self._in_flight], timeout=WRITE_TIMEOUT_SECONDS).done:
            raise TimeoutError(
                f"checkpoint of step {self._newest_step}: not on the disk after {WRITE_TIMEOUT_SECONDS:.0f} s;"
                f" see whether the storage behind {self._folder.path} still takes data"
            )
        self._in_flight.result()

    def linger(self) -> None:
        """On the way out of a failure: let a save that is under way still reach the disk, if that takes seconds only."""
        if self._in_flight is None or self._in_flight.done():
            return
        name = f"checkpoint of step {self._newest_step}"
        self._report.say(
            f"{name}: still being written; this rank ends when it is on the disk, at most {LINGER_SECONDS:g} s"
        )
        if not wait([self._in_flight], timeout=LINGER_SECONDS).done:
            self._report.say(f"{name}: not on the disk in time, given up")
        elif error := self._in_flight.exception():
            self._report.say(f"{name}: not written: {error}")

    def _write(self, folder: CheckpointFolder, step: int, content: dict[str, Any], stalled_seconds: float) -> None:
        """On the thread: from the copy to the commit, then the word of it."""
        started = time.monotonic()
        stalled_seconds = max(stalled_seconds, self._copy.wait())
        folder.save(step, to_bytes(content))
        written_seconds = time.monotonic() - started
        self._report.saved(step)
        self._report.say(
            f"checkpoint of step {step}: stalled {stalled_seconds * 1e3:.1f} ms, written in {written_seconds:.2f} s"
        )
