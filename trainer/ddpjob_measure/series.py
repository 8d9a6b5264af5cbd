"""A series of measured runs, of which one may fail and the others still count."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from ddpjob_measure.task import MeasureError
from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Series:
    """What is missing from a record, in notes for it, and whether it should be there."""

    notes: list[str] = field(default_factory=list)
    failed: bool = False

    def that_fit(self, counts: Sequence[int]) -> list[int]:
        """The numbers of ranks for which this machine has a GPU each; on CPUs all of them."""
        num_gpus = torch.cuda.device_count()
        fitting = [count for count in counts if count <= num_gpus or num_gpus == 0]
        if left_out := [str(count) for count in counts if count not in fitting]:
            self.notes.append(f"Left out: {', '.join(left_out)} ranks, for which {num_gpus} GPUs are too few.")
        return fitting

    def result(self, what: str, run: Callable[[], T]) -> T | None:
        """What the run gives; None, the error on stderr and a note of it where it fails."""
        print(f"measuring {what} ...", flush=True)
        try:
            return run()
        except (MeasureError, ConfigError) as error:
            print(error, file=sys.stderr)
            first, *others = str(error).strip().splitlines()
            self.notes.append(f"Failed: {what}: {first}" + (f" ... {others[-1].strip()}" if others else ""))
            self.failed = True
            return None

    def exit_code(self) -> int:
        """Of the command, once its record is written."""
        return contract.EXIT_PROGRAM_ERROR if self.failed else contract.EXIT_SUCCESS

    def check_has(self, measured: Sequence[object]) -> None:
        """Refuse to write a record of nothing.

        Raises:
            MeasureError: nothing was measured.
        """
        if not measured:
            raise MeasureError("\n".join(["nothing was measured", *self.notes]))
