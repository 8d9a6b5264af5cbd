"""Event files for TensorBoard, by the package `tensorboard`, which is optional."""

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ddpjob_session.observers import Beginning, Observer

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

#: So often the events reach the files. A killed rank loses those since.
FLUSH_SECONDS = 10
#: So many events may wait for a slow disk before training does.
MAX_QUEUE = 1000


def is_installed() -> bool:
    """Whether the package is there. A folder of that name in the working directory would be a package without a file."""
    found = importlib.util.find_spec("tensorboard")
    return found is not None and found.origin is not None


class EventFiles(Observer):
    """Writes one file for each attempt, all in one folder, so that TensorBoard shows one curve for each value.

    A file begins with the step from which it supersedes those before it: TensorBoard drops their later values, which are
    of steps that an interruption discarded.
    """

    def __init__(self, folder: Path) -> None:
        """The folder is made with the first value."""
        self._folder = folder
        self._writer: SummaryWriter | None = None
        self._first_step = 0

    def begin(self, beginning: Beginning) -> None:
        """Import the package, before the first step, and note where the attempt begins."""
        importlib.import_module("torch.utils.tensorboard.writer")
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
            from torch.utils.tensorboard.writer import SummaryWriter  # `begin` has imported it

            # An attempt that finds nothing left to train repeats the last evaluation, after no step of its own.
            purge_step = min(step, self._first_step + 1)
            self._writer = SummaryWriter(
                str(self._folder), purge_step=purge_step, max_queue=MAX_QUEUE, flush_secs=FLUSH_SECONDS
            )
        return self._writer
