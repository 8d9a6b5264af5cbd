"""Observers receive the values that rank 0 reports: TensorBoard, and those that users write for other services."""

import json
import math
import pkgutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.launch.identity import attempt
from ddpjob_ranks.watch import history


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
    """Writes a line for each call of `log`, from which come the evidence file and `python -m ddpjob_measure plot`."""

    def __init__(self, folder: Path) -> None:
        """`folder` is that of the spans and the evidence file."""
        self._folder = folder
        self._lines: IO[str] | None = None

    def begin(self, beginning: Beginning) -> None:
        """Open the file and mark where the attempt begins."""
        self._lines = (self._folder / history.file_name(beginning.attempt)).open("a", encoding="utf-8")
        self._write({"first_step": beginning.first_step})

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values that JSON can represent."""
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self._write({"step": step, "unix_seconds": round(time.time(), 3), "values": finite})

    def _write(self, line: Mapping[str, object]) -> None:
        assert self._lines is not None, "begin() comes first"
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()


class Observers:
    """Several observers, of which one that fails is left out."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """None so far. `say` reports failures."""
        self._observers: list[Observer] = []
        self._say = say

    def add(self, observers: Iterable[Observer]) -> None:
        """Add these."""
        self._observers += observers

    def __bool__(self) -> bool:
        return bool(self._observers)

    def each(self, call: Callable[[Observer], None]) -> None:
        """Make this call with each of them."""
        for observer in tuple(self._observers):
            try:
                call(observer)
            except Exception as error:  # noqa: BLE001 - it may be any service's; training must not end because of it
                self._observers.remove(observer)
                name, kind = type(observer).__name__, type(error).__name__
                self._say(f"observer {name} failed and receives no more values: {kind}: {error}")


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
    from ddpjob_session import tensorboard  # it imports this module

    folder = output_folder(environ)
    if folder is not None and tensorboard.is_installed():
        found.append(tensorboard.EventFiles(folder / "tensorboard"))
    return found


def output_folder(environ: Mapping[str, str]) -> Path | None:
    """Where a run leaves what people look at: the folder of its spans, else that of its checkpoints."""
    folder = environ.get(contract.DDPJOB_EVENTS_DIR) or environ.get(contract.DDPJOB_CHECKPOINT_DIR)
    return Path(folder) if folder else None


def beginning(environ: Mapping[str, str], *, first_step: int, settings: Mapping[str, object]) -> Beginning:
    """What observers learn of this attempt."""
    return Beginning(
        job=environ.get(contract.DDPJOB_NAME, ""),
        uid=environ.get(contract.DDPJOB_UID, ""),
        attempt=attempt(environ),
        first_step=first_step,
        settings=settings,
    )
