"""Observers receive the values that rank 0 reports: TensorBoard, and those that users write for other services."""

import importlib.util
import json
import math
import pkgutil
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.regular_files import make_own_folder, no_link
from ddpjob_ranks.watch import history

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

#: So often the events for TensorBoard reach the files. A killed rank loses those since.
FLUSH_SECONDS = 10
#: So many of them may wait for a slow disk before training does.
MAX_QUEUE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What an observer learns before the first step of an attempt."""

    job: str
    """Name of the DDPJob; empty outside of a cluster."""
    uid: str
    """Its uid, which all attempts share."""
    attempt: int
    """Number of the attempt, from 1."""
    first_step: int
    """Number of steps that earlier attempts did: values of later steps that they reported are superseded."""
    settings: Mapping[str, object]
    """The configuration."""


class Observer:
    """Receives values on rank 0, between steps. Its methods do nothing, so a subclass defines those that it needs.

    They are called by one thread and should return at once, since training waits. An observer that raises an exception is
    reported in the log and receives nothing from then on; the training continues.
    """

    def begin(self, beginning: Beginning) -> None:
        """The first step is about to begin."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Values by name; `step` is the number of steps done."""

    def histogram(self, step: int, name: str, values: Sequence[float]) -> None:
        """Several values of one name: the seconds of each step since the last call. `step` is the number of steps done."""

    def end(self) -> None:
        """This rank is about to end."""


class Recorder(Observer):
    """Writes a line for each call of `log`, from which come the curves of the evidence file."""

    def __init__(self, folder: Path) -> None:
        """`folder` is that of the spans and the evidence file."""
        self._folder = folder

    def begin(self, beginning: Beginning) -> None:
        """Open the file and mark where the attempt begins."""
        path = self._folder / history.file_name(beginning.attempt)
        self._lines: IO[str] = open(path, "a", encoding="utf-8", opener=no_link)  # noqa: SIM115 - until this process ends
        self._write({"first_step": beginning.first_step})

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values that JSON can represent."""
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self._write({"step": step, "unix_seconds": round(time.time(), 3), "values": finite})

    def _write(self, line: Mapping[str, object]) -> None:
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()


class EventFiles(Observer):
    """Writes one file for each attempt, all in one folder, so that TensorBoard shows one curve for each value.

    A file begins with the step from which it supersedes those before it: TensorBoard drops their later values, which are
    of steps that an interruption discarded.
    """

    def __init__(self, folder: Path) -> None:
        """The folder is made by `begin`, the file with the first value."""
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def begin(self, beginning: Beginning) -> None:
        """Import the package, before the first step, and note where the attempt begins."""
        from torch.utils.tensorboard.writer import SummaryWriter

        make_own_folder(self._folder)
        # Without the suffix its name could be guessed by whoever else may write in the folder.
        name = {"log_dir": str(self._folder), "filename_suffix": f".{secrets.token_hex(8)}"}
        self._open = partial(SummaryWriter, **name, max_queue=MAX_QUEUE, flush_secs=FLUSH_SECONDS)
        self._first_step = beginning.first_step

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write a scalar for each value."""
        writer = self._opened(step)
        for name, value in values.items():
            writer.add_scalar(name, value, step, new_style=False)

    def histogram(self, step: int, name: str, values: Sequence[float]) -> None:
        """Write a histogram of the values."""
        self._opened(step).add_histogram(name, np.asarray(values), step, bins="auto")

    def end(self) -> None:
        """Flush and close the file."""
        if self._writer is not None:
            self._writer.close()

    def _opened(self, step: int) -> "SummaryWriter":
        if self._writer is None:
            # An attempt that finds nothing left to train repeats the last evaluation, after no step of its own.
            self._writer = self._open(purge_step=min(step, self._first_step + 1))
        return self._writer


def load(paths: Iterable[str]) -> list[Observer]:
    """The observers of these import paths (`module:name`), each made by a call without arguments.

    Raises:
        ConfigError: one does not exist or is no Observer.
    """
    observers = []
    for path in paths:
        try:
            observer = pkgutil.resolve_name(path)()
        except (ImportError, AttributeError, ValueError, TypeError) as error:
            raise ConfigError(f"config: observers: {path!r} cannot be used: {type(error).__name__}: {error}") from error
        if not isinstance(observer, Observer):
            kind = type(observer).__name__
            raise ConfigError(f"config: observers: {path!r} gives a {kind}; expected a subclass of Observer")
        observers.append(observer)
    return observers


def from_environment(environ: Mapping[str, str]) -> list[Observer]:
    """Those that need nothing but a folder: of the values, and of TensorBoard's event files if the package is installed."""
    found: list[Observer] = []
    if events := environ.get(contract.DDPJOB_EVENTS_DIR):
        found.append(Recorder(Path(events)))
    tensorboard = importlib.util.find_spec("tensorboard")
    is_installed = tensorboard and tensorboard.origin  # a folder of that name would be a package without a file
    if is_installed and (folder := output_folder(environ)):
        found.append(EventFiles(folder / "tensorboard"))
    return found


def output_folder(environ: Mapping[str, str]) -> Path | None:
    """Where a run leaves what people look at: the folder of its spans, else that of its checkpoints."""
    folder = environ.get(contract.DDPJOB_EVENTS_DIR) or environ.get(contract.DDPJOB_CHECKPOINT_DIR)
    return Path(folder) if folder else None
