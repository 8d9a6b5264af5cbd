"""What the steps of `gpu` work with: processes that end with their step's limit, images, folders and what processes print.

Whatever uses the device runs in a process of its own: a GPU that hangs takes nothing else with it.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, Self

from ddpjob_measure import images
from ddpjob_measure.processes import output_of
from ddpjob_measure.task import Figures, MeasureError, Task
from ddpjob_measure.verify_resume import Run
from ddpjob_ranks import contract

Row = dict[str, Any]

#: What was compiled, also for a run that continues.
COMPILED: Final = Path(tempfile.gettempdir(), f"ddpjob-gpu-compiled-{os.getuid()}")
#: Quick runs are for busy machines with few cores, where compilers take minutes.
QUICK_PATIENCE: Final = 5


class Skipped(Exception):  # noqa: N818 - it is no error
    """The step, or the rest of it, cannot run here; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step. It is skipped where less than `least_seconds` are left, and cut off after `limit_seconds`."""

    name: str
    least_seconds: int
    limit_seconds: int
    run: Callable[["Workbench"], Iterator[Row]]

    @property
    def about(self) -> str:
        """What it shows."""
        return str(self.run.__doc__)


@dataclass(slots=True, kw_only=True)
class Workbench:
    """What steps work with: processes with a deadline, images, and a folder for caches."""

    device: Literal["cuda", "cpu"]
    quick: bool
    fault: bool = False
    foreign: Path | None = None
    """A folder with training code of others."""
    deadline: float
    outputs: Path
    """A folder for what each process prints, in a file of its own."""
    step_deadline: float = 0.0
    found: Sequence[Row] = ()
    """What an earlier run has found in this step, whose end it did not reach."""
    _resources: ExitStack = field(default_factory=ExitStack)
    _images: dict[tuple[int, int], dict[str, str]] = field(default_factory=dict)
    _num_outputs: Iterator[int] = field(default_factory=lambda: count(1))
    _folder: Path = field(init=False)

    def __enter__(self) -> Self:
        self.outputs.mkdir(parents=True, exist_ok=True)
        self._num_outputs = count(1 + len(list(self.outputs.iterdir())))  # an earlier run that is continued has some
        self._folder = Path(self._resources.enter_context(tempfile.TemporaryDirectory(prefix="ddpjob-gpu-")))
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def begin(self, step: Step) -> float:
        """A step begins; returns the seconds that are left for all steps."""
        limit = step.limit_seconds * (QUICK_PATIENCE if self.quick else 1)
        self.step_deadline = min(self.deadline, time.monotonic() + limit)
        return self.deadline - time.monotonic()

    @property
    def seconds_left(self) -> float:
        """Of this step."""
        return self.step_deadline - time.monotonic()

    def folder(self, name: str) -> Path:
        """A new folder, which is gone at the end."""
        return Path(tempfile.mkdtemp(prefix=name, dir=self._folder))

    def images(self, num_train: int, num_test: int = images.FEW) -> dict[str, str]:
        """The environment in which trainings find this number of images of CIFAR-10's size: real ones where they are available."""
        wanted = (num_train, num_test)
        if wanted not in self._images:
            found = images.provided(["resnet18-cifar10"], num_train=num_train, num_test=num_test)
            self._images[wanted], _ = self._resources.enter_context(found)
        return self._images[wanted]

    def output_of(self, module: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
        """What a module with its arguments prints, as one rank unless the module says otherwise.

        Raises:
            MeasureError: it failed, or did not end within the limit of the step; the text has the end of its output.
        """
        if (seconds := self.seconds_left) <= 0:
            raise MeasureError(f"the step's limit has passed before: python -m {' '.join(module)}")
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": str(COMPILED / "inductor"),
            "TRITON_CACHE_DIR": str(COMPILED / "triton"),
            contract.DDPJOB_CACHE_DIR: str(self._folder / "decoded"),
        }
        log = self.outputs / f"{next(self._num_outputs):02}-{module[0]}.txt"
        what = f"python -m {' '.join(module)}"
        return output_of(module, what, world_size=1, environ={**caches, **(environ or {})}, seconds=seconds, log=log)

    def figures(self, task: Task, environ: Mapping[str, str] | None = None) -> tuple[Figures, str]:
        """The figures of a task on one rank, and all that it printed."""
        text = self.output_of(["ddpjob_measure.rank", "--task", task.to_json()], environ)
        return Figures.from_output(text), text

    def training(
        self, *keys: str, environ: Mapping[str, str] | None = None, module: str = "ddpjob_trainer"
    ) -> tuple[Run, str]:
        """One whole training by the trainer, or by a module with its arguments, and all that it printed."""
        text = self.output_of([module, *(part for key in keys for part in ("--set", key))], environ)
        found = Run(name=" ".join(keys))
        for line in text.splitlines():
            found.read(line)
        return found, text
