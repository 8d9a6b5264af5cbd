"""Faults of all kinds in one run: the bits are those of an undisturbed run, and nothing is left behind.

After most faults the ranks start again in place. A lost pod is replaced while the others wait, and a lost gang by that of the next
attempt. Steps are repeated only where the pod of rank 0 was lost, which alone knew its statistics of BatchNorm.

Each launcher is a pod of one process. The recipe has BatchNorm, dropout, a moving average of the weights, gradient
accumulation, and a map-style data set that is read by worker processes.
"""

import json
import os
import re
import secrets
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ddpjob_ranks import contract
from support.gang_of_pods import Gang
from support.programs import PROGRAMS
from support.programs.fault_plan import IN_PODS, KINDS, LOSSES, random_faults, shuffled_kinds
from support.saved_states import assert_same, newest_state
from support.training_runs import Run
from testbed import pids_with, wait_for

COMMAND = (sys.executable, str(PROGRAMS / "trainer_with_faults.py"))
RECIPE = ("recipe=support.programs.noisy_recipe:noisy", "globalBatchSize=96", "microBatchSize=16", "dataWorkers=1")
#: The limit of a step is what a rank that was stopped costs. It is far longer than any step, so that nothing else reaches it.
OTHERS = ("logEverySteps=1", "checkpointEverySteps=9", "stepTimeoutSeconds=20")
STEPS_PER_EPOCH = 14
#: More than a run needs that has a fault in each of them.
MOST_RESTARTS = "10000"
NUM_FAULTS = 20
#: Of a fault: up to 6 steps to it, and up to an epoch until it comes, where it is one of an evaluation.
STEPS_PER_FAULT = 8
#: In a soak.
MANY_FAULTS = int(os.environ.get("FAULTS_NUMBER", "60"))
HELD = "processes, threads, descriptors, KiB of memory files"
SHARED_MEMORY = Path("/dev/shm")
#: Every process of a run inherits this variable, by which it is found in /proc.
MARK = "SEEDED_FAULTS_MARK"
#: A fault costs a second, and one of a stopped rank 35 s, on a quiet machine.
SECONDS_PER_FAULT = 120


class Pods:
    """The newest pod of each rank. A lost one is replaced as the operator does it, alone or with all others in the next attempt.

    The output of a pod follows that of the pods of its rank before it.
    """

    def __init__(
        self, folder: Path, num_pods: int, losses: list[str], stack: ExitStack, *keys: str, **environ: str
    ) -> None:
        self.runs: dict[int, Run] = {}
        self.temporary: dict[int, Path] = {}
        """The directory of each pod for its files, which end with it."""
        self._folder, self._num_pods, self._losses = folder, num_pods, iter(losses)
        self._stack, self._keys, self._environ = stack, keys, environ
        # Its path is short, because the workers that read data make sockets below it, whose paths have at most 107 bytes.
        self._temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="ddpjob-"))

    def begin(self, attempt: int) -> None:
        """Start all pods of an attempt, in place of those of the one before."""
        for run in self.runs.values():
            run.process.kill()
        self._attempt, self._replacements = attempt, [0] * self._num_pods
        self._gang = Gang(self._folder / str(attempt), self._num_pods, self._stack, *self._keys, is_forked=False)
        for rank in range(self._num_pods):
            self._start(rank)

    def replace_lost(self) -> None:
        """Replace a pod that was lost, if one was, or the whole gang."""
        lost = [rank for rank, run in self.runs.items() if run.process.poll() == -signal.SIGKILL]
        if lost and next(self._losses) == "gang":
            self.begin(self._attempt + 1)
        elif lost:
            self._replacements[lost[0]] += 1
            self._start(lost[0])

    @property
    def ends(self) -> list[int | None]:
        """The exit codes of those that have ended."""
        return [run.process.poll() for run in self.runs.values()]

    def _start(self, rank: int) -> None:
        self.temporary[rank] = Path(tempfile.mkdtemp(dir=self._temporary))
        own = {contract.DDPJOB_ATTEMPT: str(self._attempt), contract.TMPDIR: str(self.temporary[rank])}
        run = self._gang.pod(rank, self._replacements[rank], COMMAND, **self._environ, **own)
        if rank in self.runs:
            self.runs[rank].wait()
            run.lines[:0] = self.runs[rank].lines
        self.runs[rank] = run


def finished_pods(
    folder: Path,
    faults: list[dict[str, Any]],
    *,
    num_nodes: int,
    epochs: int,
    attempt: int = 1,
    recipe: Sequence[str] = RECIPE,
) -> Run:
    """The pod of rank 0 of a run with these faults, after its end."""
    marks = folder / f"faults-{attempt}"
    marks.mkdir(parents=True)
    mark, shared = uuid.uuid4().hex, abandoned_shared_memory()
    environ = (
        {contract.DDPJOB_CHECKPOINT_DIR: str(folder / "checkpoints"), contract.DDPJOB_IN_PLACE_RESTARTS: MOST_RESTARTS}
        | {contract.TORCHINDUCTOR_CACHE_DIR: str(folder), "OMP_NUM_THREADS": "1"}
        | {"FAULTS": json.dumps(faults), "FAULTS_FOLDER": str(marks), MARK: mark}
    )
    losses = [fault["kind"] for fault in faults if fault["kind"] in LOSSES]
    with ExitStack() as stack:
        pods = Pods(folder, num_nodes, losses, stack, *recipe, *OTHERS, f"epochs={epochs}", **environ)
        pods.begin(attempt)
        deadline = time.monotonic() + SECONDS_PER_FAULT * (2 + len(faults))
        while None in pods.ends:
            assert time.monotonic() < deadline, _story("the run has not ended", faults, pods)
            pods.replace_lost()
            assert not any(pods.ends) or -signal.SIGKILL in pods.ends, _story("a pod has failed", faults, pods)
            time.sleep(0.1)
        assert not any(pods.ends), _story("a pod has failed", faults, pods)
        run, *_ = pods.runs.values()
        run.wait()
        assert len(list(marks.iterdir())) == len(faults), _story("not all of the faults have come", faults, pods)
        wait_for("all processes of the run to end", lambda: not pids_with(mark), seconds=SECONDS_PER_FAULT)
        files = [file for directory in pods.temporary.values() for file in directory.iterdir()]
        assert not files, f"temporary files are left: {files}"
    # The processes of a lost pod may leave files there, which end with the shared memory of its containers.
    assert losses or not abandoned_shared_memory() - shared, "files in /dev/shm of processes that have ended"
    return run


def abandoned_shared_memory() -> set[str]:
    """torch's files in shared memory whose names have a process that is no longer there."""
    named = {path.name: path.name.split("_")[1] for path in SHARED_MEMORY.glob("torch_*_*")}
    return {name for name, pid in named.items() if not Path("/proc", pid).exists()}


def _story(what: str, faults: list[dict[str, Any]], pods: Pods) -> str:
    texts = (run.text for run in pods.runs.values())
    return "\n\n".join((f"{what}; exit codes {pods.ends}; faults {json.dumps(faults)}", *texts))


def some_faults(
    num_faults: int, *, num_nodes: int, seed: int | None = None, of: Sequence[str] = KINDS
) -> list[dict[str, Any]]:
    """So many random ones. FAULTS_SEED repeats those of another run."""
    seed = int(os.environ.get("FAULTS_SEED") or secrets.randbits(32)) if seed is None else seed
    kinds = shuffled_kinds(num_faults, seed=seed, of=of)
    print(f"FAULTS_SEED={seed} on {num_nodes} nodes: {dict(Counter(kinds))}")
    return random_faults(kinds, seed=seed, num_ranks=num_nodes)


def check(folder: Path, faults: list[dict[str, Any]], *, num_nodes: int) -> None:
    """A run with these faults ends with the bits of one without any, and repeats steps only where the pod of rank 0 is lost."""
    epochs = 3 + STEPS_PER_FAULT * len(faults) // STEPS_PER_EPOCH
    whole = finished_pods(folder / "whole", [], num_nodes=num_nodes, epochs=epochs)
    run = finished_pods(folder / "faulty", faults, num_nodes=num_nodes, epochs=epochs)
    found = re.findall(r"^epoch \d+ step (\d+)/\d+ loss (\S+)", run.text, re.MULTILINE)
    losses = [(int(step), float(loss)) for step, loss in found]
    num_repeated = len(losses) - len(dict(losses))
    num_returns = sum(after <= before for (before, _), (after, _) in pairwise(losses))
    restarts = re.findall(r"^resumed from .*$", run.text, re.MULTILINE)
    print(f"{len(restarts)} times resumed; {num_repeated} steps repeated, in {num_returns} pieces")
    assert num_returns <= sum(map(loses_rank_0, faults)), f"{restarts}\n{run.text}"
    assert all(line.endswith(": no step is lost") for line in restarts if "in memory" in line), run.text
    assert [loss for loss in losses if loss not in whole.losses.items()] == []
    assert run.weights == whole.weights
    assert_same(newest_state(folder / "faulty"), newest_state(folder / "whole"))


def loses_rank_0(fault: dict[str, Any]) -> bool:
    """Whether the pod is lost whose rank alone knew the statistics of BatchNorm."""
    return fault["kind"] == "gang" or (fault["kind"] == "pod" and 0 in fault["ranks"])


pytestmark = pytest.mark.timeout(2 * 5 * SECONDS_PER_FAULT)


@pytest.mark.parametrize(("num_nodes", "seed"), [(2, 3), (3, 12)], ids=["loss of rank 0", "loss of another rank"])
def test_four_faults_cost_no_bit(num_nodes: int, seed: int, tmp_path: Path) -> None:
    check(tmp_path, some_faults(4, num_nodes=num_nodes, seed=seed), num_nodes=num_nodes)


@pytest.mark.nightly
@pytest.mark.timeout(2 * SECONDS_PER_FAULT * NUM_FAULTS)
@pytest.mark.parametrize("num_nodes", [2, 3])
def test_twenty_random_faults_cost_no_bit(num_nodes: int, tmp_path: Path) -> None:
    check(tmp_path, some_faults(NUM_FAULTS, num_nodes=num_nodes), num_nodes=num_nodes)


@pytest.mark.nightly
@pytest.mark.timeout(2 * SECONDS_PER_FAULT * MANY_FAULTS)
def test_soak_of_a_fault_every_few_steps_holds_no_more_at_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make soak-recovery` prints what it costs."""
    faults = some_faults(MANY_FAULTS, num_nodes=2, of=IN_PODS)
    epochs = 3 + STEPS_PER_FAULT * len(faults) // STEPS_PER_EPOCH
    speeds = []
    for name, some in (("whole", []), ("faulty", faults)):
        began = time.monotonic()
        finished_pods(tmp_path / name, some, num_nodes=2, epochs=epochs)
        seconds = time.monotonic() - began
        speeds.append(f"{name}: {epochs * STEPS_PER_EPOCH} steps in {seconds:.0f} s")
    with capsys.disabled():
        print(f"\n{'; '.join(speeds)}; {len(faults)} faults")
    assert len(faults) >= 20, "a number of faults by which a leak shows"
    for is_first in (True, False):
        held = held_in_pods(tmp_path / "faulty", len(faults), is_first=is_first)
        with capsys.disabled():
            print(f"{HELD} {'with' if is_first else 'without'} the store: {held[0]} … {held[-1]}")
        most = [max(numbers) for numbers in zip(*held[: len(held) // 3], strict=True)]
        least = [min(numbers) for numbers in zip(*held[-(len(held) // 3) :], strict=True)]
        # What a generation leaves behind would be in the last third of them more often than in the first third.
        assert all(after <= before for before, after in zip(most, least, strict=True)), held


def held_in_pods(folder: Path, num_faults: int, *, is_first: bool) -> list[list[int]]:
    """What was held at each fault by the launcher of rank 0, which serves the store, or by that of another rank."""
    links = [str((folder / "faults-1" / str(number)).readlink()) for number in range(num_faults)]
    return [
        [int(number) for number in held] for _, _, rank, *held in map(str.split, links) if (rank == "0") is is_first
    ]


def test_the_statistics_of_a_step_that_only_the_other_rank_completes_are_known(tmp_path: Path) -> None:
    """Rank 0, which alone has those that count, is killed before it has counted the step."""
    fault = {"kind": "kill", "step": 5, "point": "optimizer", "ranks": [0], "delay": 0.5}
    check(tmp_path, [fault], num_nodes=2)


def test_a_failure_while_a_checkpoint_is_loaded_is_followed_by_the_step_of_the_checkpoint(tmp_path: Path) -> None:
    """The digits have no BatchNorm, so that any state in memory would do."""
    fault = {"kind": "raise", "step": 0, "point": "begin", "ranks": [1], "delay": 0}
    finished_pods(tmp_path, [], num_nodes=2, epochs=1, recipe=["recipe=digits"])
    run = finished_pods(tmp_path, [fault], num_nodes=2, epochs=2, attempt=2, recipe=["recipe=digits"])
    resumed = re.findall(r"^resumed from step (\d+)", run.text, re.MULTILINE)
    assert resumed == ["23", "23"], run.text
    assert min(run.losses) == 24
