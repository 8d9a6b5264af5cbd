"""The output of rank 0: log lines for people, progress lines for the operator, values for observers. Other ranks have none."""

import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import Self, TextIO

from ddpjob_ranks import contract
from ddpjob_ranks.launch.identity import attempt
from ddpjob_session.observers import Beginning, Observer
from ddpjob_session.progress import NO_RESTARTS, InPlaceRestarts, Progress, check_metrics, fits

#: The longest time between two progress lines. The margin below PROGRESS_INTERVAL_SECONDS is for a busy machine.
HEARTBEAT_SECONDS = 0.8 * contract.PROGRESS_INTERVAL_SECONDS
#: A progress line that would follow earlier is skipped; the heartbeat prints the latest progress.
MIN_SECONDS_BETWEEN_LINES = 1.0
#: Largest number of step times that observers get at once: those of the last steps.
MAX_STEP_TIMES = 10_000
#: Observers get values of these names from the training itself.
TRAINING_VALUES = frozenset({"loss", "learning_rate", "samples_per_second", "checkpoint_step", "step_seconds"})


class Reporter:
    """Prints if it is enabled, which it is on rank 0. It has a thread, so use it as a context manager.

    The thread repeats the latest progress line, which shows that the process is alive, not that training makes progress.
    """

    def __init__(self, *, enabled: bool, out: TextIO | None = None, heartbeat_seconds: float = HEARTBEAT_SECONDS):
        self._enabled = enabled
        self._out = out or sys.stdout
        # A script may have put an object of its own in the place of stdout.
        is_terminal = getattr(self._out, "isatty", lambda: False)
        # Progress lines are for programs. In a job the operator reads them, also where its pods have a terminal.
        self._for_programs = contract.DDPJOB_NAME in os.environ or not is_terminal()
        self._heartbeat_seconds = heartbeat_seconds
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._progress: Progress | None = None
        self._printed_at = 0.0
        self._created_at = time.monotonic()
        self.accuracies: dict[int, float] = {}
        """The accuracies reported so far, by step."""
        self._observers: list[Observer] = []
        self._observed_checkpoint: int | None = None
        self._step_seconds: deque[float] = deque(maxlen=MAX_STEP_TIMES)
        self._step_ended = 0.0
        self._left_out: set[str] = set()
        self._diverged_at: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self.observe_checkpoint()
            self._to_observers(lambda observer: observer.end())
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def say(self, text: str) -> None:
        """Print a line for people."""
        if self._enabled:
            with self._lock:
                self._write(text)

    def watch(self, observers: Iterable[Observer]) -> None:
        """Give what is reported to these observers as well. To be called before `begin`, on rank 0."""
        self._observers += observers

    def begin(
        self,
        *,
        step: int,
        total_steps: int,
        steps_per_epoch: int | None,
        checkpoint_step: int | None,
        restarts: InPlaceRestarts = NO_RESTARTS,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """Print the first progress line and start the heartbeat. Observers get the settings."""
        beginning = Beginning(
            job=os.environ.get(contract.DDPJOB_NAME, ""),
            uid=os.environ.get(contract.DDPJOB_UID, ""),
            attempt=attempt(os.environ),
            first_step=step,
            settings=settings or {},
        )
        self._to_observers(lambda observer: observer.begin(beginning))
        self._observed_checkpoint = checkpoint_step
        self._steps_per_epoch = steps_per_epoch
        self.first_step, self._began = step, time.monotonic()
        self._window_start, self._window_samples = self._began, 0
        self._step_ended = self._began
        self._progress = Progress(
            step=step,
            total_steps=total_steps,
            epoch=self._epoch(step, total_steps),
            phase=contract.PHASE_START,
            checkpoint_step=checkpoint_step,
            restarts=restarts,
        )
        self._print_progress()
        if self._enabled:
            self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
            self._thread.start()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Report this phase inside the context, whose time does not count in samples per second."""
        before = self._current.phase
        started = time.monotonic()
        self._update(phase=name)
        self._print_progress_unless_recent()
        try:
            yield
        finally:
            seconds = time.monotonic() - started
            self._window_start += seconds
            self._step_ended += seconds
            self._update(phase=before if before != contract.PHASE_START else contract.PHASE_TRAIN)

    def keep_alive(self) -> None:
        """Show the operator that there is progress within a phase without steps."""
        if self._progress is not None:
            self._update(alive=self._current.alive + 1)
            self._print_progress_unless_recent()

    def step_done(self, step: int, *, num_samples: int) -> None:
        """Count a step; `step` is the number of steps done."""
        self._window_samples += num_samples
        if self._observers:
            before, self._step_ended = self._step_ended, time.monotonic()
            self._step_seconds.append(self._step_ended - before)
        self._update(step=step, epoch=self._epoch(step, self._current.total_steps), phase=contract.PHASE_TRAIN)

    def log(
        self,
        *,
        loss: float,
        step: int | None = None,
        data_seconds: float,
        compute_seconds: float,
        exposed_seconds: float = 0.0,
        learning_rate: float | None = None,
    ) -> None:
        """Print the log line of the step, by default that counted last. `loss` is the mean over the step's samples on all ranks.

        `exposed_seconds` are the part of `compute_seconds` in which gradients travel and nothing is computed.
        """
        now = time.monotonic()
        current = self._current
        step = current.step if step is None else step
        per_second = self._window_samples / max(1e-9, now - self._window_start)
        self._window_start, self._window_samples = now, 0
        eta_seconds = self._eta_seconds()
        self._update(loss=loss, samples_per_second=per_second, eta_seconds=eta_seconds)
        self.say(
            f"epoch {self._epoch(step, current.total_steps)} step {step}/{current.total_steps} loss {loss:.9g}"
            f" data {data_seconds * 1e3:.1f} ms compute {compute_seconds * 1e3:.1f} ms"
            f" {per_second:,.0f} samples/s eta {timedelta(seconds=round(eta_seconds))}"
        )
        values = {"loss": loss, "samples_per_second": per_second}
        if learning_rate is not None:
            values["learning_rate"] = learning_rate
        if whole := data_seconds + compute_seconds:
            values["share/data"] = data_seconds / whole
            values["share/compute"] = (compute_seconds - exposed_seconds) / whole
            values["share/communication"] = exposed_seconds / whole
        self._observe(step, values)
        self._print_progress_unless_recent()

    def metrics(self, values: Mapping[str, float], *, headline: str | None = None) -> None:
        """Add these to the named values that the next progress lines show; `headline` is one of them as text, such as "accuracy 99.72 %".

        Raises:
            ValueError: a name or the headline does not fit into a progress line, or there are too many names.
        """
        known = {**self._current.metrics, **values}
        check_metrics(known, headline)
        self._update(metrics=known, headline=headline or self._current.headline)

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Print the log line of a script's own metrics of a step. The headline is the first but `loss`.

        Those that do not fit into a progress line are in the log line alone, which is said once: no metric ends a training.
        """
        current = self._current
        known = {**current.metrics, **{name: value for name, value in values.items() if name != "loss"}}
        shown = dict(islice(((k, v) for k, v in known.items() if fits(k)), contract.MAX_METRICS))
        if left_out := [name for name in known if name not in shown and name not in self._left_out]:
            self._left_out.update(left_out)
            self.say(
                f"metrics {', '.join(left_out)}: only in the log and for observers; a progress line holds"
                f" {contract.MAX_METRICS}, whose names have at most 24 characters of A-Z, a-z, 0-9 and _./-"
            )
        headline = next((f"{name} {value:.6g}" for name, value in values.items() if name in shown), None)
        self.metrics({name: value for name, value in values.items() if name in shown}, headline=headline)
        self._update(loss=values.get("loss", current.loss), eta_seconds=self._eta_seconds())
        listed = " ".join(f"{name} {value:.9g}" for name, value in values.items())
        self.say(f"step {step}/{current.total_steps} {listed}")
        if "loss" in values:
            self._watch_loss(values["loss"], step)
        self._observe(step, values)
        self._print_progress_unless_recent()

    def _watch_loss(self, loss: float, step: int) -> None:
        if math.isfinite(loss):
            self._diverged_at = None
        elif self._diverged_at is None:
            self._diverged_at = step
            self.say(
                f"the loss of step {step} is {loss}: the training has probably diverged; checkpoints from here on may hold weights"
                " that are not finite"
            )

    def evaluated(
        self, values: Mapping[str, float], texts: Mapping[str, str], *, headline: str, num_samples: int, note: str = ""
    ) -> None:
        """Report the metrics of the held-out split after the steps counted so far, as numbers and as text.

        `headline` is the name of the one to show.
        """
        step = self._current.step
        if "accuracy" in values:
            self.accuracies[step] = values["accuracy"] / 100
        shown = ", ".join([texts[headline], *(text for name, text in texts.items() if name != headline)])
        self.say(f"after {step} steps: {shown} ({num_samples} held-out samples{note})")
        self.metrics({name: value for name, value in values.items() if math.isfinite(value)}, headline=texts[headline])
        self._observe(step, values)
        self._print_progress()

    def saved(self, step: int) -> None:
        """Report that the checkpoint of this step is complete."""
        self._update(checkpoint_step=step)
        self._print_progress_unless_recent()

    def end(self) -> None:
        """Print the last progress line, and the total time since this object was created."""
        self._update(phase=contract.PHASE_DONE, eta_seconds=0.0)
        self._print_progress()
        if self._diverged_at is not None:
            self.say(f"the loss has not been finite since step {self._diverged_at}")
        self.say(f"total time {time.monotonic() - self._created_at:.1f} s")

    def observe_checkpoint(self) -> None:
        """Give observers the step of a checkpoint that was completed after the last values."""
        self._observe(self._current.step, {})

    def _observe(self, step: int, values: Mapping[str, float]) -> None:
        """Give observers the values, the step of the newest checkpoint if it is another, and the times of steps."""
        if not self._observers:
            return
        saved = self._current.checkpoint_step
        if saved is not None and saved != self._observed_checkpoint:
            self._observed_checkpoint, values = saved, {**values, "checkpoint_step": saved}
        if values:
            self._to_observers(lambda observer: observer.log(step, values))
        if self._step_seconds:
            times = tuple(self._step_seconds)
            self._to_observers(lambda observer: observer.histogram(step, "step_seconds", times))
            self._step_seconds.clear()

    def _to_observers(self, call: Callable[[Observer], None]) -> None:
        """Make this call with each observer. One that fails receives no further calls."""
        for observer in tuple(self._observers):
            try:
                call(observer)
            except Exception as error:  # noqa: BLE001 - it may be any service's; training must not end because of it
                self._observers.remove(observer)
                name, kind = type(observer).__name__, type(error).__name__
                self.say(f"observer {name} failed and receives no more values: {kind}: {error}")

    @property
    def _current(self) -> Progress:
        assert self._progress is not None, "begin() comes first"
        return self._progress

    def _eta_seconds(self) -> float:
        """The time that is left, by the mean of the steps so far; not finite before the first one."""
        num_steps = self._current.step - self.first_step
        seconds_per_step = (time.monotonic() - self._began) / num_steps if num_steps else math.nan
        return seconds_per_step * (self._current.total_steps - self._current.step)

    def _epoch(self, step: int, total_steps: int) -> int | None:
        """The epoch that the next step belongs to; after the last step, the last epoch. None where there are no epochs."""
        return None if self._steps_per_epoch is None else min(step, total_steps - 1) // self._steps_per_epoch

    def _update(self, **changes: float | str | Mapping[str, float] | None) -> None:
        with self._lock:
            self._progress = replace(self._current, **changes)  # type: ignore[arg-type]  # checked by the callers above

    def _print_progress_unless_recent(self) -> None:
        if time.monotonic() - self._printed_at >= MIN_SECONDS_BETWEEN_LINES:
            self._print_progress()

    def _print_progress(self) -> None:
        if self._enabled:
            with self._lock:
                self._printed_at = time.monotonic()
                if self._for_programs:
                    self._write(self._current.line())

    def _beat(self) -> None:
        while not self._closed.wait(max(0.05, self._printed_at + self._heartbeat_seconds - time.monotonic())):
            if time.monotonic() - self._printed_at >= self._heartbeat_seconds:
                self._print_progress()

    def _write(self, line: str) -> None:
        with suppress(OSError):  # a reader that has gone, or a full disk, ends no training
            self._out.write(line + "\n")
            self._out.flush()
