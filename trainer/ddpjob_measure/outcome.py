"""What a training that has ended left in its folder of events: accuracy and training time by evaluation, spans, weights."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Of a percentage that became a share.
ROUNDING = 1e-9


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

    def row(self, *targets: float) -> dict[str, Any]:
        """The columns of a table, with the training time to these accuracies."""
        return {
            "seed": self.seed,
            "accuracy %": 100 * self.accuracy,
            "training s": self.training_seconds,
            "whole s": self.whole_seconds,
            **{f"s to {100 * target:g} %": self.seconds_to(target) or "not reached" for target in targets},
            "weights": self.weights_sha256[:12],
        }


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
