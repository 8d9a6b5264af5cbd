"""`accuracy`: a recipe trained to its end over several seeds: accuracy, learning curve, and time with its spread."""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from ddpjob_measure import images, options, plot, processes, record
from ddpjob_measure.options import positive
from ddpjob_measure.series import Series
from ddpjob_measure.surroundings import surroundings
from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_trainer import recipes
from ddpjob_trainer.recipe_names import short_names

#: One training at most.
DEADLINE_SECONDS = 24 * 3600.0
#: Of a percentage that became a share.
ROUNDING = 1e-9
NOTES = (
    (
        "Training: from the first step on; without reading the data, set-up, compilation and evaluations. Whole: from the"
        " start of the process, with all of them."
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One training. `seconds_by_step` is the training time up to the evaluation after a step, without evaluations."""

    seed: int
    accuracy_by_step: Mapping[int, float]
    seconds_by_step: Mapping[int, float]
    whole_seconds: float
    weights_sha256: str

    @property
    def accuracy(self) -> float:
        """The last one, as a share of the held-out samples."""
        return self.accuracy_by_step[max(self.accuracy_by_step)]

    @property
    def training_seconds(self) -> float:
        """Until the last evaluation."""
        return max(self.seconds_by_step.values())

    def seconds_to(self, accuracy: float) -> float | None:
        """Training time until an evaluation gave at least that; None where none did."""
        reached = [step for step, found in self.accuracy_by_step.items() if found >= accuracy - ROUNDING]
        return self.seconds_by_step[min(reached)] if reached else None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--recipe", choices=short_names(), default="digits")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="one training each (default: 0 1 2)")
    parser.add_argument(
        "--ranks", type=positive, default=max(1, torch.cuda.device_count()), help="default: the GPUs, or 1"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the trainer; repeatable"
    )
    parser.add_argument("--train-images", type=positive, default=50_000, help="of the archive (default: all)")
    parser.add_argument("--test-images", type=positive, default=10_000, help="of the archive (default: all)")
    parser.add_argument(
        "--target", type=float, metavar="PERCENT", help="also report the training time to this accuracy"
    )
    options.add_record(parser, "accuracy")


def run(given: argparse.Namespace) -> int:
    """Train, print the table, write it, its JSON and the curves, of all trainings that did not fail.

    Raises:
        ConfigError: there are no labelled images, or `--set` names a key that has an option of its own.
    """
    for key in ("recipe", "seed"):
        if taken := [assignment for assignment in given.set if assignment.startswith(f"{key}=")]:
            raise ConfigError(f"--set {taken[0]}: use --{key if key == 'recipe' else 'seeds'}")
    if given.recipe == images.SYNTHETIC:
        raise ConfigError(f"{given.recipe}: random pixels have nothing to learn; choose another recipe")
    plot.check_available()
    path, facts, series = options.record_path(given), surroundings(), Series()
    facts |= {"recipe": given.recipe, "ranks": given.ranks, "set": " ".join(given.set) or "nothing"}
    wanted = {"num_train": given.train_images, "num_test": given.test_images}
    with images.photographs([given.recipe], **wanted) as (environ, facts["data"]):
        found = [
            series.result(f"{given.recipe}, seed {seed}", partial(train, given, seed, environ)) for seed in given.seeds
        ]
    outcomes = [outcome for outcome in found if outcome]
    series.check_has(outcomes)
    prediction = recipes.find(given.recipe).test_time_note
    notes = [*NOTES, *([f"Accuracy is that of held-out images{prediction}."] if prediction else []), *series.notes]
    text = record.page("Accuracy", facts, [table(outcomes, given.target), curve(outcomes)], notes)
    print("\n" + text)
    record.save(path, text, facts, [asdict(outcome) for outcome in outcomes])
    curves = {f"seed {outcome.seed}": outcome.accuracy_by_step for outcome in outcomes}
    plot.draw_curves(path.with_name(path.name + ".png"), curves)
    return series.exit_code()


def train(given: argparse.Namespace, seed: int, environ: Mapping[str, str]) -> Outcome:
    """One training, to its end.

    Raises:
        MeasureError: it failed.
    """
    keys = [f"recipe={given.recipe}", *given.set, f"seed={seed}"]
    arguments = [part for key in keys for part in ("--set", key)]
    with tempfile.TemporaryDirectory() as events:
        processes.output_of(
            ["ddpjob_trainer", *arguments],
            f"{given.recipe}, seed {seed}",
            world_size=given.ranks,
            environ={**environ, contract.DDPJOB_EVENTS_DIR: events},
            seconds=DEADLINE_SECONDS,
        )
        return outcome_of(Path(events), seed)


def spans_of(events: Path) -> list[dict[str, Any]]:
    """The spans of rank 0 in the first attempt, those of all its processes."""
    lines = (events / "attempt-1-rank-0.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def outcome_of(events: Path, seed: int) -> Outcome:
    """What the evidence file and rank 0's spans say of a training (`ddpjob_ranks.watch`)."""
    evidence = json.loads((events / "attempt-1-evidence.json").read_text(encoding="utf-8"))
    return Outcome(
        seed=seed,
        accuracy_by_step={int(step): accuracy for step, accuracy in evidence["accuracy_by_step"].items()},
        seconds_by_step=training_seconds_by_step(spans_of(events)),
        whole_seconds=evidence["seconds_since_process_start"],
        weights_sha256=evidence["weights_sha256"],
    )


def training_seconds_by_step(spans: Sequence[Mapping[str, float | str]]) -> dict[int, float]:
    """Of each evaluation's step, the seconds since the first step began less those of the evaluations before."""
    (began,) = (float(span["monotonic_seconds"]) for span in spans if span["span"] == "first_step")
    evaluating, found = 0.0, {}
    for span in spans:
        if span["span"] == "evaluate":
            found[int(span["step"])] = float(span["monotonic_seconds"]) - began - evaluating
            evaluating += float(span["seconds"])
    return found


def table(outcomes: Sequence[Outcome], target_percent: float | None) -> str:
    """Markdown: a line for each seed, then their mean and standard deviation."""
    columns = {
        "accuracy %": [100 * outcome.accuracy for outcome in outcomes],
        "training s": [outcome.training_seconds for outcome in outcomes],
        "whole s": [outcome.whole_seconds for outcome in outcomes],
    }
    lines = [
        [outcome.seed, *(f"{column[index]:.2f}" for column in columns.values()), outcome.weights_sha256[:12]]
        for index, outcome in enumerate(outcomes)
    ]
    summary = [
        f"{mean(column):.2f}" + (f" ± {stdev(column):.2f}" if len(column) > 1 else "") for column in columns.values()
    ]
    lines.append(["mean", *summary, ""])
    header = ["seed", *columns, "weights"]
    if target_percent is not None:
        header.append(f"s to {target_percent:g} %")
        reached = [outcome.seconds_to(target_percent / 100) for outcome in outcomes]
        for line, seconds in zip(lines, reached, strict=False):
            line.append("not reached" if seconds is None else f"{seconds:.2f}")
        num = sum(seconds is not None for seconds in reached)
        lines[-1].append(f"{num} of {len(outcomes)} reached it")
    return record.table(header, lines)


def curve(outcomes: Sequence[Outcome]) -> str:
    """Markdown: accuracy in percent by step, a line for each evaluation and a column for each seed."""
    steps = sorted({step for outcome in outcomes for step in outcome.accuracy_by_step})
    found = [[outcome.accuracy_by_step.get(step) for outcome in outcomes] for step in steps]
    lines = [
        [step, *("" if accuracy is None else f"{100 * accuracy:.2f}" for accuracy in line)]
        for step, line in zip(steps, found, strict=True)
    ]
    return record.table(["steps", *(f"seed {outcome.seed}" for outcome in outcomes)], lines)
