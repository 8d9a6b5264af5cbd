"""`accuracy`: a recipe trained to its end over several seeds: accuracy, learning curve, and time with its spread."""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from bench.driver import Run
from ddpjob_measure import images, processes, record
from ddpjob_measure.outcome import Outcome, outcome_of
from ddpjob_measure.record import positive
from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_trainer import recipes
from ddpjob_trainer.recipe_names import short_names

#: One training at most.
DEADLINE_SECONDS = 24 * 3600.0
NOTE = (
    "Training: from the first step on; without reading the data, set-up, compilation and evaluations. Whole: from the"
    " start of the process, with all of them."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--recipe", choices=short_names(), default="digits")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="one training each (default: 0 1 2)")
    parser.add_argument(
        "--ranks", type=positive, default=max(1, torch.cuda.device_count()), help="default: the GPUs, or 1"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the trainer")
    parser.add_argument("--train-images", type=positive, default=50_000, help="of the archive (default: all)")
    parser.add_argument("--test-images", type=positive, default=10_000, help="of the archive (default: all)")
    parser.add_argument("--target", type=float, nargs="*", default=[], metavar="PERCENT", help="also the time to these")
    record.add_options(parser, "accuracy", results=None)


def run(given: argparse.Namespace) -> int:
    """Train, and record the trainings that did not fail with their curves.

    Raises:
        ConfigError: there are no labelled images, or `--set` names a key that has an option of its own.
    """
    for key in ("recipe", "seed"):
        if taken := [assignment for assignment in given.set if assignment.startswith(f"{key}=")]:
            raise ConfigError(f"--set {taken[0]}: use --{key if key == 'recipe' else 'seeds'}")
    if given.recipe == images.SYNTHETIC:
        raise ConfigError(f"{given.recipe}: random pixels have nothing to learn; choose another recipe")
    run = Run(given, "Accuracy")
    run.facts |= {"recipe": given.recipe, "ranks": given.ranks, "set": " ".join(given.set) or "nothing"}
    prediction = recipes.find(given.recipe).test_time_note
    run.notes += [NOTE, *([f"Accuracy is that of held-out images{prediction}."] if prediction else [])]
    wanted = {"num_train": given.train_images, "num_test": given.test_images}
    outcomes = []
    with images.provided([given.recipe], **wanted, must_be_real=True) as (environ, run.facts["data"]):
        for seed in given.seeds:
            if outcome := run.result(f"{given.recipe}, seed {seed}", partial(train, given, seed, environ)):
                outcomes.append(outcome)
                run.add(outcome.row(*(percent / 100 for percent in given.target)))
    if len(outcomes) > 1:
        run.add(summary(run.rows))
    run.more_tables.append(record.table(curve(outcomes)) if outcomes else "")
    return run.end()


def train(given: argparse.Namespace, seed: int, environ: Mapping[str, str]) -> Outcome:
    """One training, to its end.

    Raises:
        MeasureError: it failed.
    """
    keys = [f"recipe={given.recipe}", *given.set, f"seed={seed}"]
    with tempfile.TemporaryDirectory() as events:
        processes.output_of(
            ["ddpjob_trainer", *(part for key in keys for part in ("--set", key))],
            f"{given.recipe}, seed {seed}",
            world_size=given.ranks,
            environ={**environ, contract.DDPJOB_EVENTS_DIR: events},
            seconds=DEADLINE_SECONDS,
        )
        return outcome_of(Path(events), seed)


def summary(rows: Sequence[record.Row]) -> dict[str, Any]:
    """Mean and standard deviation of each column, of those seeds that reached the target where it is the time to one."""
    columns = {name: [row[name] for row in rows if isinstance(row[name], float)] for name in rows[0] if name != "seed"}
    return {
        "seed": "mean",
        **{
            name: f"{mean(values):.2f} ± {stdev(values):.2f}" + f" of {len(values)}" * (len(values) < len(rows))
            for name, values in columns.items()
            if len(values) > 1
        },
    }


def curve(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Accuracy in percent by step, a row for each evaluation and a column for each seed."""
    steps = sorted({step for outcome in outcomes for step in outcome.accuracy_by_step})
    return [
        {"steps": step}
        | {f"seed {o.seed}": 100 * o.accuracy_by_step[step] for o in outcomes if step in o.accuracy_by_step}
        for step in steps
    ]
