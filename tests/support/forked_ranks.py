"""Ranks of real trainings, forked from one process that has loaded torch and nothing else.

Each is a process of its own with its own gloo, as in a job of one process per pod. A rank costs 0.6 s of CPU where one
that loads torch itself costs 3.4 s (one epoch of the digits on an AMD EPYC). Where the launcher or the start of a process
matters, use training_runs.
"""

import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from ddpjob_ranks import contract
from support.processes import DEADLINE_SECONDS, Printed, await_text, forked
from support.training_runs import ranks_by_hand, with_recipe

#: Keys and variables of one rank.
Own = tuple[tuple[str, ...], Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class ForkedRun(Printed):
    """A training under way, or at its end."""

    folder: Path
    processes: list[ForkServerProcess]

    def text(self, rank: int = 0) -> str:
        """The rank's output so far, both streams."""
        return (self.folder / f"rank-{rank}.log").read_text(encoding="utf-8")

    def exit_code(self, rank: int = 0) -> int | None:
        """The exit code of one rank, once it has ended."""
        self.processes[rank].join(DEADLINE_SECONDS)
        return self.processes[rank].exitcode

    def wait(self) -> list[int | None]:
        """The exit codes, by rank."""
        return [self.exit_code(rank) for rank in range(len(self.processes))]

    def wait_for(self, pattern: str, *, rank: int = 0) -> None:
        """Until the pattern is in the rank's output."""
        await_text(pattern, lambda: self.text(rank), lambda: not self.processes[rank].is_alive())

    def printed(self) -> str:
        """That of rank 0."""
        return self.text()

    def message(self, rank: int = 0) -> str:
        """The rank's termination message."""
        return (self.folder / f"termination-{rank}").read_text(encoding="utf-8")


def may_have_workers() -> None:
    """A rank that is forked here is a daemon of multiprocessing, which may not start processes; a real one is not."""
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]


@contextmanager
def started(
    folder: Path,
    *keys: str,
    ranks: int | Sequence[Mapping[str, str]],
    environ: Mapping[str, str] | None = None,
    own: Mapping[int, Own] | None = None,
    first: Callable[[], None] | None = None,
    command: Sequence[str] = (),
) -> Iterator[ForkedRun]:
    """Start a training on so many ranks, of the digits where the keys name no other recipe; killed at the block's end.

    Args:
        folder: For output and termination messages.
        keys: `key=value` of the configuration.
        ranks: Processes to start as pods of the operator's, or the variables that place each of them.
        environ: Further variables of all ranks.
        own: Further keys and variables of single ranks.
        first: A function of a module, which each rank calls before it trains.
        command: A module with its arguments, to be run instead of the trainer with its keys.
    """
    folder.mkdir(parents=True, exist_ok=True)
    processes = []
    for rank, variables in enumerate(ranks_by_hand(ranks) if isinstance(ranks, int) else ranks):
        message = folder / f"termination-{rank}"
        message.write_text("")
        log = folder / f"rank-{rank}.log"
        log.write_text("")
        own_keys, own_variables = (own or {}).get(rank, ((), {}))
        mine = {**variables, **(environ or {}), **own_variables, contract.DDPJOB_TERMINATION_LOG: str(message)}
        module, *arguments = command or ("ddpjob_trainer", *with_recipe(*keys, *own_keys))
        processes.append(forked(_run, module, arguments, mine, log, first))
    try:
        yield ForkedRun(folder=folder, processes=processes)
    finally:
        for process in processes:
            process.kill()
            process.join()


def finished(
    folder: Path,
    *keys: str,
    ranks: int | Sequence[Mapping[str, str]] = 1,
    environ: Mapping[str, str] | None = None,
    first: Callable[[], None] | None = None,
    expected: int = 0,
) -> ForkedRun:
    """The same, run to its end, with this exit code of every rank."""
    with started(folder, *keys, ranks=ranks, environ=environ, first=first) as run:
        codes = run.wait()
        assert set(codes) == {expected}, f"exit codes {codes}:\n{run.text()}"
        return run


def measured(
    command: Sequence[str], what: str, *, world_size: int, environ: Mapping[str, str] | None = None, seconds: float = 0
) -> str:
    """In the place of `ddpjob_measure.processes.output_of`: what forked ranks print."""
    del seconds  # DEADLINE_SECONDS
    with (
        tempfile.TemporaryDirectory() as folder,
        started(Path(folder), ranks=world_size, environ=environ, command=command) as run,
    ):
        assert run.wait() == [0] * world_size, f"{what}:\n{run.text()}"
        return run.text()


def _run(
    module: str, arguments: list[str], environ: Mapping[str, str], log: Path, first: Callable[[], None] | None
) -> None:
    with log.open("a", encoding="utf-8") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.update(environ)
    if first is not None:
        first()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
