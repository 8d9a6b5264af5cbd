"""Checkpoints written while training continues: the state is copied between two steps, and a thread writes the copy."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import torch

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_session.checkpoints.folder import CheckpointFolder
from ddpjob_session.checkpoints.snapshot import HostCopy
from ddpjob_session.report import Reporter
from ddpjob_session.state import State

#: Longest time in which the storage takes nothing of a checkpoint that training waits for.
WRITE_TIMEOUT_SECONDS = 600.0
#: Longest wait for a checkpoint after a failure: with the rest of the exit it must fit into the launcher's grace period
#: (`ddpjob_ranks.launch.launcher`).
LINGER_SECONDS = 3.0


class CheckpointWriter:
    """Saves one checkpoint at a time, and exports weights; without a folder (on every rank but 0, or if no checkpoints are kept) it does nothing.

    The thread hashes and writes pieces of many MB straight from the copy, without the GIL: 200 MB keep the training thread
    from running for 15 to 40 ms, where torch.save into memory took 100 ms (`make bench-trainer BENCH=overhead`, two busy
    cores of an AMD EPYC).
    Errors on the thread (Fenced, OSError) are raised to training at its next step boundary, or at the end.
    """

    def __init__(
        self,
        folder: CheckpointFolder | None,
        report: Reporter,
        device: torch.device,
        *,
        is_wrong: Callable[[], bool] = lambda: False,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        """`is_wrong`: see HostCopy. `moved` is called while training waits and the storage takes data."""
        self._moved = moved
        self._folder = folder
        self._report = report
        self._copy = HostCopy(device, is_wrong)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-writer")
        self._in_flight: Future[None] | None = None
        self._weights = HostCopy(device, is_wrong)
        self._exporting: Future[None] | None = None
        self.newest_step: int | None = None
        """Step of the newest checkpoint that is stored or being written, which `save` skips. `Run` sets it when it loads one."""
        self._has_lingered = False

    def save(self, state: State, *, since: float) -> None:
        """Wait for the previous save, copy the state, and leave the rest to the thread. Saves a step only once.

        `since` is when training stopped for this checkpoint, on the monotonic clock: the reported stall begins there.
        """
        if self._folder is None or state.step == self.newest_step:
            return
        with self._report.phase(contract.PHASE_CHECKPOINT):
            self.wait()
            try:
                # At each save: a value may change its type later, and would make every checkpoint that is kept unreadable.
                state.check_loadable()
            except ConfigError as error:  # it was loadable before the first step
                self._report.say(f"step {state.step} is not saved, and training continues: {error}")
                return
            content = self._copy.take(state.content())
        self.newest_step = state.step
        stalled_seconds = time.monotonic() - since
        self._in_flight = self._thread.submit(self._write, self._folder, state.step, content, stalled_seconds)

    def export(self, tensors: Mapping[str, torch.Tensor], write: Callable[[Mapping[str, torch.Tensor]], None]) -> None:
        """Have the thread write a copy of these tensors, after the checkpoint that it may be writing."""
        self.wait_for_export()
        copied = self._weights.take({"model": tensors})["model"]

        def on_thread() -> None:
            self._weights.wait()
            write(copied)

        self._exporting = self._thread.submit(on_thread)

    def wait_for_export(self) -> None:
        """Wait until the last export is stored. Raises as `wait` does."""
        self._wait(self._exporting, "exported weights")

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._in_flight is not None and not self._in_flight.done()

    def check(self) -> None:
        """Raise the thread's error, if there is one. To be called between steps."""
        for begun in (self._in_flight, self._exporting):
            if begun is not None and begun.done():
                begun.result()

    def wait(self) -> None:
        """Wait until the last save and the last export are stored.

        Raises:
            TimeoutError: the storage has taken nothing of it for WRITE_TIMEOUT_SECONDS.
            Fenced, OSError: it was not committed.
        """
        self.wait_for_export()
        self._wait(self._in_flight, f"checkpoint of step {self.newest_step}")

    def _wait(self, begun: Future[None] | None, what: str) -> None:
        if self._folder is None or begun is None:
            return
        seen, since = self._folder.num_bytes_written, time.monotonic()
        while not wait([begun], timeout=min(1.0, WRITE_TIMEOUT_SECONDS)).done:
            if self._folder.num_bytes_written != seen:
                seen, since = self._folder.num_bytes_written, time.monotonic()
                self._moved()
            elif time.monotonic() - since >= WRITE_TIMEOUT_SECONDS:
                raise TimeoutError(
                    f"{what}: the storage took nothing of it for {WRITE_TIMEOUT_SECONDS:.0f} s; check whether the storage of"
                    f" {self._folder.location} still accepts data"
                )
        begun.result()

    def linger(self) -> None:
        """After a failure: wait up to LINGER_SECONDS for a save in progress, in the first call only."""
        if self._in_flight is None or not self.busy or self._has_lingered:
            return
        self._has_lingered = True
        name = f"checkpoint of step {self.newest_step}"
        self._report.say(
            f"{name} is still being written; waiting up to {LINGER_SECONDS:g} s for it before this rank ends"
        )
        if not wait([self._in_flight], timeout=LINGER_SECONDS).done:
            self._report.say(f"{name} was not stored in time and is abandoned")
        elif error := self._in_flight.exception():
            self._report.say(f"{name} was not written: {error}")

    def _write(self, folder: CheckpointFolder, step: int, content: dict[str, Any], stalled_seconds: float) -> None:
        """On the thread: write and commit the copy, then report it."""
        started = time.monotonic()
        stalled_seconds = max(stalled_seconds, self._copy.wait())

        folder.save(step, partial(torch.save, content))
        written_seconds = time.monotonic() - started
        self._report.saved(step)
        self._report.say(
            f"checkpoint of step {step}: stalled {stalled_seconds * 1e3:.1f} ms, written in {written_seconds:.2f} s"
        )
