"""Random faults of a run whose ranks start again in place: no step is repeated, and the bits are those of an undisturbed run.

Each launcher is a pod of one process. The recipe has BatchNorm, dropout, a moving average of the weights, gradient
accumulation, and a map-style data set that is read by worker processes.
"""

import json
import os
import re
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ddpjob_ranks import contract
from fault_plan import random_faults, shuffled_kinds
from test_session import assert_same, saved
from training_runs import Run, ranks_by_hand, started

COMMAND = (sys.executable, str(Path(__file__).with_name("trainer_with_faults.py")))
RECIPE = ("recipe=noisy_recipe:noisy", "globalBatchSize=96", "microBatchSize=16", "dataWorkers=1")
#: The limit of a step is what a rank that was stopped costs. It is far longer than any step, so that nothing else reaches it.
OTHERS = ("logEverySteps=1", "checkpointEverySteps=9", "stepTimeoutSeconds=20")
STEPS_PER_EPOCH = 14
#: More than a run needs that has a fault in each of them.
MOST_RESTARTS = "100"
NUM_FAULTS = 20
#: Of a fault: up to 6 steps to it, and up to an epoch until it comes, where it is one of an evaluation.
STEPS_PER_FAULT = 8
#: A fault costs a second, and one of a stopped rank 35 s, on a quiet machine.
SECONDS_PER_FAULT = 120


def finished_pods(
    folder: Path,
    faults: list[dict[str, Any]],
    *,
    num_nodes: int,
    epochs: int,
    attempt: int = 1,
    recipe: Sequence[str] = RECIPE,
) -> list[Run]:
    """All pods of a run with these faults, after its end."""
    marks = folder / f"faults-{attempt}"
    marks.mkdir(parents=True)
    keys = (*recipe, *OTHERS, f"epochs={epochs}")
    with ExitStack() as stack:
        runs = [
            stack.enter_context(started(folder / str(rank), *keys, ranks=0, command=COMMAND, environ=environ))
            for rank, variables in enumerate(ranks_by_hand(num_nodes))
            for environ in [
                variables
                | {contract.DDPJOB_CHECKPOINT_DIR: str(folder / "checkpoints"), contract.DDPJOB_UID: "u1"}
                | {contract.DDPJOB_ATTEMPT: str(attempt)}
                | {contract.DDPJOB_IN_PLACE_RESTARTS: MOST_RESTARTS, "OMP_NUM_THREADS": "1"}
                | {"FAULTS": json.dumps(faults), "FAULTS_FOLDER": str(marks)}
            ]
        ]
        deadline = time.monotonic() + SECONDS_PER_FAULT * (2 + len(faults))
        while any(run.process.poll() is None for run in runs) and not any(run.process.poll() for run in runs):
            assert time.monotonic() < deadline, _story("the run has not ended", faults, runs)
            time.sleep(0.1)
        assert not any(run.process.poll() for run in runs), _story("a pod has failed", faults, runs)
        assert [run.wait() for run in runs] == [0] * num_nodes
        assert len(list(marks.iterdir())) == len(faults), _story("not all of the faults have come", faults, runs)
        return runs


def _story(what: str, faults: list[dict[str, Any]], runs: list[Run]) -> str:
    ends = [run.process.poll() for run in runs]
    return "\n\n".join((f"{what}; exit codes {ends}; faults {json.dumps(faults)}", *(run.text for run in runs)))


def some_faults(num_faults: int, *, num_nodes: int) -> list[dict[str, Any]]:
    """So many random ones. FAULTS_SEED repeats those of another run."""
    seed = int(os.environ.get("FAULTS_SEED") or secrets.randbits(32))
    print(f"FAULTS_SEED={seed}")
    return random_faults(shuffled_kinds(num_faults, seed=seed), seed=seed, num_ranks=num_nodes)


def check(folder: Path, faults: list[dict[str, Any]], *, num_nodes: int) -> None:
    """A run with these faults ends with the bits of one without any, and does each step once."""
    epochs = 3 + STEPS_PER_FAULT * len(faults) // STEPS_PER_EPOCH
    whole, *_ = finished_pods(folder / "whole", [], num_nodes=num_nodes, epochs=epochs)
    run, *_ = finished_pods(folder / "faulty", faults, num_nodes=num_nodes, epochs=epochs)
    steps = re.findall(r"^epoch \d+ step (\d+)/", run.text, re.MULTILINE)
    repeated = len(steps) - len(set(steps))
    restarts = re.findall(r"^resumed from .*$", run.text, re.MULTILINE)
    print(f"{len(faults)} faults on {num_nodes} nodes, {repeated} steps repeated; {len(restarts)} times resumed")
    assert repeated == 0, f"{restarts}\n{run.text}"
    assert all(line.endswith("in memory: no step is lost") for line in restarts), run.text
    assert run.weights == whole.weights
    assert run.losses.items() <= whole.losses.items()
    assert_same(saved(folder / "faulty"), saved(folder / "whole"))


@pytest.mark.parametrize("num_nodes", [2, 3])
def test_three_random_faults_cost_no_step_and_no_bit(num_nodes: int, tmp_path: Path) -> None:
    check(tmp_path, some_faults(3, num_nodes=num_nodes), num_nodes=num_nodes)


@pytest.mark.nightly
@pytest.mark.timeout(2 * SECONDS_PER_FAULT * NUM_FAULTS)
@pytest.mark.parametrize("num_nodes", [2, 3])
def test_twenty_random_faults_cost_no_step_and_no_bit(num_nodes: int, tmp_path: Path) -> None:
    check(tmp_path, some_faults(NUM_FAULTS, num_nodes=num_nodes), num_nodes=num_nodes)


def test_the_statistics_of_a_step_that_only_the_other_rank_completes_are_known(tmp_path: Path) -> None:
    """Rank 0, which alone has those that count, is killed before it has counted the step."""
    fault = {"kind": "kill", "step": 5, "point": "optimizer", "ranks": [0], "delay": 0.5}
    check(tmp_path, [fault], num_nodes=2)


def test_a_failure_while_a_checkpoint_is_loaded_is_followed_by_the_step_of_the_checkpoint(tmp_path: Path) -> None:
    """The digits have no BatchNorm, so that any state in memory would do."""
    fault = {"kind": "raise", "step": 0, "point": "begin", "ranks": [1], "delay": 0}
    finished_pods(tmp_path, [], num_nodes=2, epochs=1, recipe=["recipe=digits"])
    run, *_ = finished_pods(tmp_path, [fault], num_nodes=2, epochs=2, attempt=2, recipe=["recipe=digits"])
    resumed = re.findall(r"^resumed from step (\d+)", run.text, re.MULTILINE)
    assert resumed == ["23", "23"], run.text
    assert min(run.losses) == 24
