"""How much of a training is measured, on how many ranks, and on which."""

import argparse
from collections.abc import Sequence

import torch
from bench.driver import Run

from ddpjob_measure import record
from ddpjob_measure.record import positive
from ddpjob_trainer.recipe_names import short_names


def add_options(parser: argparse.ArgumentParser, kind: str, *, recipe: str | None, steps: int, batch: int) -> None:
    """Recipe, steps, windows, batch and the place of the record."""
    parser.add_argument("--recipe", choices=short_names(), default=recipe, help=f"default: {recipe or 'by subject'}")
    parser.add_argument("--batch", type=positive, default=batch, help=f"global batch (default: {batch})")
    parser.add_argument("--steps", type=positive, default=steps, help=f"steps in a window (default: {steps})")
    parser.add_argument("--windows", type=positive, default=3, help="repeats, which give the spread (default: 3)")
    record.add_options(parser, kind, results=None)


def that_fit(counts: Sequence[int], run: Run) -> list[int]:
    """The numbers of ranks for which this machine has a GPU each, with a note of the others; on CPUs all of them."""
    num_gpus = torch.cuda.device_count()
    fitting = [count for count in counts if count <= num_gpus or num_gpus == 0]
    if left_out := [str(count) for count in counts if count not in fitting]:
        run.notes.append(f"Left out: {', '.join(left_out)} ranks, for which {num_gpus} GPUs are too few.")
    return fitting
