"""Ranks of real trainings for tests that start many: forked from one process that has loaded torch, and nothing else.

Each is a process of its own with its own gloo, as in a job of one process per pod. A start takes a fraction of a second
where loading torch anew takes seconds.
"""

import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from unittest import mock

from ddpjob_ranks import contract
from ddpjob_trainer import __main__
from training_runs import DEADLINE_SECONDS, ranks_by_hand

CONTEXT = multiprocessing.get_context("forkserver")
# torch._dynamo is what the first step of an optimizer loads, in seconds.
CONTEXT.set_forkserver_preload(["ddpjob_trainer.worker", "ddpjob_recipes.digits", "torch._dynamo", "forked_ranks"])
#: The process that forks loads modules before it hears of this one's path, and OpenMP before a rank's own main().
SERVER_ENVIRONMENT = {"PYTHONPATH": ":".join(path for path in sys.path if path), "OMP_WAIT_POLICY": "passive"}


@dataclass(frozen=True, kw_only=True)
class ForkedRun:
    """A training under way, or at its end."""

    folder: Path
    processes: list[ForkServerProcess]

    def text(self, rank: int = 0) -> str:
        """The rank's output so far, both streams."""
        return (self.folder / f"rank-{rank}.log").read_text(encoding="utf-8")

    def wait(self) -> list[int | None]:
        """The exit codes, by rank."""
        for process in self.processes:
            process.join(DEADLINE_SECONDS)
        return [process.exitcode for process in self.processes]

    def wait_for(self, pattern: str, *, rank: int = 0) -> None:
        """Until the pattern is in the rank's output."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not re.search(pattern, self.text(rank)):
            alive = self.processes[rank].is_alive()
            assert alive or re.search(pattern, self.text(rank)), f"ended without {pattern!r}:\n{self.text(rank)}"
            assert time.monotonic() < deadline, f"no {pattern!r} in {DEADLINE_SECONDS} s:\n{self.text(rank)}"
            time.sleep(0.005)

    @property
    def losses(self) -> dict[int, float]:
        """Loss by number of steps done, exactly as computed."""
        found = re.findall(r"^epoch \d+ step (\d+)/\d+ loss (\S+)", self.text(), re.MULTILINE)
        return {int(step): float(loss) for step, loss in found}

    @property
    def weights(self) -> str:
        """The digest of the final parameters."""
        match = re.search(r"^weights sha256 (\w+)$", self.text(), re.MULTILINE)
        assert match, self.text()
        return match[1]

    @property
    def accuracy(self) -> float:
        """The last accuracy told, in percent."""
        return float(re.findall(r"accuracy (\S+) %", self.text())[-1])

    def message(self, rank: int = 0) -> str:
        """The rank's termination message."""
        return (self.folder / f"termination-{rank}").read_text(encoding="utf-8")


@contextmanager
def started(
    folder: Path,
    *keys: str,
    ranks: int,
    environ: Mapping[str, str] | None = None,
    first: Callable[[], None] | None = None,
) -> Iterator[ForkedRun]:
    """Start a training of the digits on so many ranks; killed at the end of the block.

    `first`, a function of a module, is called in each rank before it trains.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with mock.patch.dict(os.environ, SERVER_ENVIRONMENT):
        forkserver.ensure_running()
    arguments = [part for key in ("recipe=digits", *keys) for part in ("--set", key)]
    processes = []
    for rank, variables in enumerate(ranks_by_hand(ranks)):
        message = folder / f"termination-{rank}"
        message.write_text("")
        log = folder / f"rank-{rank}.log"
        log.write_text("")
        mine = {**variables, **(environ or {}), contract.DDPJOB_TERMINATION_LOG: str(message)}
        processes.append(CONTEXT.Process(target=_train, args=(arguments, mine, log, first), daemon=True))
        processes[-1].start()
    try:
        yield ForkedRun(folder=folder, processes=processes)
    finally:
        for process in processes:
            process.kill()
            process.join()


def finished(
    folder: Path,
    *keys: str,
    ranks: int,
    environ: Mapping[str, str] | None = None,
    first: Callable[[], None] | None = None,
) -> ForkedRun:
    """The same, run to its end, which must be a success."""
    with started(folder, *keys, ranks=ranks, environ=environ, first=first) as run:
        codes = run.wait()
        assert codes == ranks * [0], f"exit codes {codes}:\n{run.text()}"
        return run


def _train(arguments: list[str], environ: Mapping[str, str], log: Path, first: Callable[[], None] | None) -> None:
    with log.open("a", encoding="utf-8") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.update(environ)
    if first is not None:
        first()
    sys.exit(__main__.main(arguments))
