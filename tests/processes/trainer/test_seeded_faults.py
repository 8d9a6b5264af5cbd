"""Faults of a run whose ranks start again in place: no step is repeated, the bits are those of an undisturbed run, and
nothing is left behind.

Each launcher is a pod of one process. The recipe has BatchNorm, dropout, a moving average of the weights, gradient
accumulation, and a map-style data set that is read by worker processes.
"""

import json
import os
import re
import secrets
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from ddpjob_ranks import contract
from fault_plan import random_faults, shuffled_kinds
from test_session import assert_same, saved
from testbed import wait_for
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
#: In a soak.
MANY_FAULTS = int(os.environ.get("FAULTS_NUMBER", "60"))
SHARED_MEMORY = Path("/dev/shm")
#: Every process of a run inherits this variable, by which it is found in /proc.
MARK = "SEEDED_FAULTS_MARK"
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
    mark, shared = uuid.uuid4().hex, abandoned_shared_memory()
    keys = (*recipe, *OTHERS, f"epochs={epochs}")
    with ExitStack() as stack:
        # Its path is short, because the workers that read data make sockets below it, whose paths have at most 107 bytes.
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ddpjob-")))
        runs = [
            stack.enter_context(started(folder / str(rank), *keys, ranks=0, command=COMMAND, environ=environ))
            for rank, variables in enumerate(ranks_by_hand(num_nodes))
            for environ in [
                variables
                | {contract.DDPJOB_CHECKPOINT_DIR: str(folder / "checkpoints"), contract.DDPJOB_UID: "u1"}
                | {contract.DDPJOB_ATTEMPT: str(attempt)}
                | {contract.DDPJOB_IN_PLACE_RESTARTS: MOST_RESTARTS, "OMP_NUM_THREADS": "1"}
                | {"FAULTS": json.dumps(faults), "FAULTS_FOLDER": str(marks), MARK: mark}
                | {"TMPDIR": str(temporary), contract.TORCHINDUCTOR_CACHE_DIR: str(folder)}
            ]
        ]
        deadline = time.monotonic() + SECONDS_PER_FAULT * (2 + len(faults))
        while any(run.process.poll() is None for run in runs) and not any(run.process.poll() for run in runs):
            assert time.monotonic() < deadline, _story("the run has not ended", faults, runs)
            time.sleep(0.1)
        assert not any(run.process.poll() for run in runs), _story("a pod has failed", faults, runs)
        assert [run.wait() for run in runs] == [0] * num_nodes
        assert len(list(marks.iterdir())) == len(faults), _story("not all of the faults have come", faults, runs)
        wait_for("all processes of the run to end", lambda: not processes_with(mark), seconds=SECONDS_PER_FAULT)
        files = list(temporary.iterdir())
        assert not files, f"temporary files are left: {files}"
    assert not abandoned_shared_memory() - shared, "files in /dev/shm of processes that have ended"
    return runs


def processes_with(mark: str) -> list[str]:
    """The processes that have inherited the mark."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                found.append(process.name)
    return found


def abandoned_shared_memory() -> set[str]:
    """torch's files in shared memory whose names have a process that is no longer there."""
    named = {path.name: path.name.split("_")[1] for path in SHARED_MEMORY.glob("torch_*_*")}
    return {name for name, pid in named.items() if not Path("/proc", pid).exists()}


def _story(what: str, faults: list[dict[str, Any]], runs: list[Run]) -> str:
    ends = [run.process.poll() for run in runs]
    return "\n\n".join((f"{what}; exit codes {ends}; faults {json.dumps(faults)}", *(run.text for run in runs)))


def some_faults(num_faults: int, *, num_nodes: int, seed: int | None = None) -> list[dict[str, Any]]:
    """So many random ones. FAULTS_SEED repeats those of another run."""
    seed = int(os.environ.get("FAULTS_SEED") or secrets.randbits(32)) if seed is None else seed
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


pytestmark = pytest.mark.timeout(2 * 5 * SECONDS_PER_FAULT)


@pytest.mark.parametrize("num_nodes", [2, 3])
def test_three_faults_cost_no_step_and_no_bit(num_nodes: int, tmp_path: Path) -> None:
    check(tmp_path, some_faults(3, num_nodes=num_nodes, seed=num_nodes), num_nodes=num_nodes)


@pytest.mark.nightly
@pytest.mark.timeout(2 * SECONDS_PER_FAULT * NUM_FAULTS)
@pytest.mark.parametrize("num_nodes", [2, 3])
def test_twenty_random_faults_cost_no_step_and_no_bit(num_nodes: int, tmp_path: Path) -> None:
    check(tmp_path, some_faults(NUM_FAULTS, num_nodes=num_nodes), num_nodes=num_nodes)


@pytest.mark.nightly
@pytest.mark.timeout(2 * SECONDS_PER_FAULT * MANY_FAULTS)
def test_soak_of_a_fault_every_few_steps_holds_no_more_at_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make soak-recovery` prints what it costs."""
    faults = some_faults(MANY_FAULTS, num_nodes=2)
    epochs = 3 + STEPS_PER_FAULT * len(faults) // STEPS_PER_EPOCH
    speeds = []
    for name, some in (("whole", []), ("faulty", faults)):
        began = time.monotonic()
        finished_pods(tmp_path / name, some, num_nodes=2, epochs=epochs)
        seconds = time.monotonic() - began
        speeds.append(f"{name}: {epochs * STEPS_PER_EPOCH} steps in {seconds:.0f} s")
    with capsys.disabled():
        print(f"\n{'; '.join(speeds)}; {len(faults)} faults")
    assert len(faults) >= 12, "a number of faults by which a leak shows"
    for is_first in (True, False):
        held = held_in_pods(tmp_path / "faulty", len(faults), is_first=is_first)
        with capsys.disabled():
            print(
                f"processes, threads, descriptors {'with' if is_first else 'without'} the store: {held[0]} … {held[-1]}"
            )
        most = [max(numbers) for numbers in zip(*held[: len(held) // 2], strict=True)]
        least = [min(numbers) for numbers in zip(*held[len(held) // 2 :], strict=True)]
        # What a generation leaves behind would be in the second half of them more often than in the first half.
        assert all(after <= before for before, after in zip(most, least, strict=True)), held


def held_in_pods(folder: Path, num_faults: int, *, is_first: bool) -> list[list[int]]:
    """What was held at each fault by the launcher of rank 0, which serves the store, or by that of another rank."""
    links = [(folder / "faults-1" / str(number)).readlink() for number in range(num_faults)]
    numbers = [[int(number) for number in str(link).split()] for link in links]
    return [held for _, _, rank, *held in numbers if (rank == 0) is is_first]


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
