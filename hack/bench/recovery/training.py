"""What the demonstration and both benchmarks of a recovery share: a local training under way, what a kill cost, and the table."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import testbed
from bench import driver
from ddpjob_measure.task import Spread

#: Longest wait for anything. A machine with much else to do needs a minute to import torch.
DEADLINE_SECONDS = 240.0
POLL_SECONDS = 0.002
KILL_AT_STEP = 60
MARK = "BENCH_RECOVERY_MARK"
STEP_DONE = re.compile(r"^epoch \d+ step (\d+)/", re.MULTILINE)
GOES_ON = re.compile(r"^resumed from step (\d+) [\s\S]*?^epoch \d+ step (\d+)/", re.MULTILINE)


class Training:
    """Two ranks under way in a folder of their own; all processes are killed at the end of the context."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._mark = uuid.uuid4().hex
        self._processes: list[subprocess.Popen[bytes]] = []
        stack.callback(self._end)

    def start(self, command: Sequence[str], log: str = "log", **variables: str) -> subprocess.Popen[bytes]:
        """A process of it, whose output goes to this file."""
        environ = {**os.environ, "OMP_NUM_THREADS": "1", MARK: self._mark, **variables}
        with (self.folder / log).open("wb") as output:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self._processes.append(process)
        return process

    def run_local(self, **spec: Any) -> subprocess.Popen[bytes]:
        """`ddpjob run --local` of a job of two pods."""
        metadata = {"name": "recovery"}
        job = {"apiVersion": "ddpjob.dev/v1beta1", "kind": "DDPJob", "metadata": metadata, "spec": {"nodes": 2, **spec}}
        (self.folder / "job.yaml").write_text(json.dumps(job))
        return self.start([sys.executable, "-m", "ddpjob_cli", "run", "--local", "job.yaml"], "command.log")

    def text(self, rank: int = 0) -> str:
        """What a rank has printed, in all attempts."""
        logs = [*sorted(self.folder.glob(f".ddpjob/runs/*/logs/*-{rank}.log")), *self.folder.glob("log")]
        return "".join(path.read_text(errors="replace") for path in logs)

    def wait_for(
        self, pattern: re.Pattern[str], *, after: int = 0, text: Callable[[], str] | None = None
    ) -> re.Match[str]:
        """The first match in what rank 0 has printed, or in another text, once it is there.

        Raises:
            RuntimeError: all processes ended without it, or it did not come in time.
        """
        of = text or self.text

        def found() -> re.Match[str] | None:
            have_ended = all(process.poll() is not None for process in self._processes)
            if (match := pattern.search(of(), after)) is None and have_ended:
                raise RuntimeError(f"all processes have ended without {pattern.pattern!r}:\n{of()}\n{self.text()}")
            return match

        try:
            return testbed.wait_for(repr(pattern.pattern), found, seconds=DEADLINE_SECONDS, every_seconds=POLL_SECONDS)
        except testbed.DeadlineError as error:
            raise RuntimeError(f"{error}:\n{of()}\n{self.text()}") from error

    def wait_for_step(self, step: int) -> None:
        """Until this step is done."""
        self.wait_for(re.compile(rf"^epoch \d+ step {step}/", re.MULTILINE))

    def kill_rank_1(self) -> None:
        """Kill a fork, which is named after its rank, or a trainer that has its rank in its environment."""
        named = testbed.pids_with(self._mark, name="rank 1")
        if not (found := named or [pid for pid in testbed.pids_with(self._mark) if _trains_as_rank_1(pid)]):
            raise RuntimeError(f"no process of rank 1 was found:\n{self.text()}")
        os.kill(found[0], signal.SIGKILL)

    def _end(self) -> None:
        """Kill all processes, of which some have lost their parent, and wait for their end."""

        def none_is_left() -> bool:
            left = testbed.pids_with(self._mark)
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        testbed.wait_for("all processes to end", none_is_left, seconds=DEADLINE_SECONDS, every_seconds=POLL_SECONDS)
        for process in self._processes:
            process.wait()


def _trains_as_rank_1(pid: int) -> bool:
    process = Path(f"/proc/{pid}")
    with suppress(OSError):  # it has ended
        variables, command = (process / "environ").read_bytes(), (process / "cmdline").read_bytes()
        return b"\0RANK=1\0" in variables and b"-m\0ddpjob_trainer\0" in command
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one kill cost."""

    seconds: float
    """Until the next step was done, which may be one that is repeated."""
    num_repeated: int
    """Steps that had been done before and were done again."""

    @classmethod
    def of(cls, seconds: float, before: str, resumed: int) -> Trial:
        """Of a training that printed `before` until it was killed and went on from the step `resumed`."""
        return cls(seconds=seconds, num_repeated=max(0, max(map(int, STEP_DONE.findall(before))) - resumed))


def parser_of(module: str, about: str | None, kind: str, ways: Iterable[str]) -> argparse.ArgumentParser:
    """The command line of a comparison."""
    parser = driver.parser_of(module, about, kind)
    parser.add_argument("--trials", type=int, default=10, help="of each (default: %(default)s)")
    parser.add_argument("--ways", nargs="+", choices=ways, default=list(ways), metavar="WAY", help=", ".join(ways))
    return parser


def compare(given: argparse.Namespace, where: str, trial: Callable[[str], Trial]) -> int:
    """Run all trials and print the table; returns the exit code."""
    run = driver.Run(given, "From SIGKILL of a rank to the next step")
    run.facts["trials"] = given.trials
    run.notes.append(where)
    found: Mapping[str, Sequence[Trial]] = driver.in_turn(given.ways, given.trials, trial)
    for way, trials in found.items():
        repeated = median(trial.num_repeated for trial in trials)
        run.add({"started again by": way, "s": Spread.of(t.seconds for t in trials), "steps repeated, p50": repeated})
    return run.end()
