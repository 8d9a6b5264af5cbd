"""`verify-resume`: a training that is killed and resumed ends with the same bits as one that is not.

Trains once without interruption and once killed by SIGKILL at random steps and resumed each time, then compares the loss
of every step and the final weights, bit for bit. Prints a table; exits with 1 on any difference. Arguments it does not
know are the trainer's (`--config`, `--set recipe=digits`). At the end it reports what the profile `exact` costs in speed.
"""

import argparse
import fcntl
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from ddpjob_measure.processes import dies_with_this_process, variables_of_a_run
from ddpjob_measure.record import positive
from ddpjob_measure.task import MeasureError
from ddpjob_ranks import contract

TRAINER = (sys.executable, "-m", "ddpjob_trainer")
#: Longest time for one run.
DEADLINE_SECONDS = 3600.0
#: Kills come in this first part of the steps, so that a run has not ended before the line of the step has arrived.
KILLED_PART = 0.8
#: A run that is this much output ahead waits for this process: about 40 lines. The smallest pipe that Linux has.
PIPE_BYTES = 4096

LOG_LINE = re.compile(r"epoch \d+ step (?P<step>\d+)/(?P<total>\d+) loss (?P<loss>\S+) .* (?P<rate>\S+) samples/s")
WEIGHTS_LINE = re.compile(r"weights sha256 (\w+)")


@dataclass(kw_only=True)
class Run:
    """What one start of the trainer printed, up to its end.

    `losses` are kept as printed, by number of steps done: nine significant digits distinguish any two float32.
    """

    name: str
    losses: dict[int, str] = field(default_factory=dict)
    total_steps: int = 0
    rates: list[float] = field(default_factory=list)
    weights: str | None = None
    end: str = "complete"
    tail: list[str] = field(default_factory=list)

    def read(self, line: str) -> None:
        """Take in one line of output."""
        self.tail = [*self.tail[-40:], line]
        if match := LOG_LINE.search(line):
            self.losses[int(match["step"])] = match["loss"]
            self.total_steps = int(match["total"])
            self.rates.append(float(match["rate"].replace(",", "")))
        elif match := WEIGHTS_LINE.search(line):
            self.weights = match[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """SIGKILL for one process once a step has been printed; `victim` selects it among the ranks and their launcher."""

    step: int
    victim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """How to start the training that is verified."""

    arguments: Sequence[str]
    world_size: int
    command: Sequence[str]

    def run(
        self,
        name: str,
        *keys: str,
        environ: Mapping[str, str] | None = None,
        kill: Kill | None = None,
        log: bool = True,
    ) -> Run:
        """One start, to its end, by `kill` or by itself.

        Raises:
            MeasureError: it ended in another way than it should have, or not before the deadline.
        """
        chosen = [*keys, *(["logEverySteps=1"] if log else [])]
        command = [*self.command, *self.arguments, *(part for key in chosen for part in ("--set", key))]
        variables = {**variables_of_a_run(self.world_size), **(environ or {})}
        run = Run(name=name)
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)  # which fails once the pipe holds more
        with (
            open(reader, encoding="utf-8", errors="replace") as lines,  # noqa: PTH123 - a file descriptor
            subprocess.Popen(
                command,
                env=variables,
                stdout=writer,
                stderr=subprocess.STDOUT,
                preexec_fn=dies_with_this_process(),
            ) as process,
        ):
            os.close(writer)
            deadline = threading.Timer(DEADLINE_SECONDS, process.kill)
            deadline.start()
            for line in lines:
                run.read(line.rstrip("\n"))
                if kill is not None and run.end == "complete" and max(run.losses, default=0) >= kill.step:
                    run.end = _kill(process, kill)
            deadline.cancel()
        if (process.returncode == 0) != (kill is None) or (kill is not None and run.end == "complete"):
            output = "\n".join(run.tail)
            wanted = f"to be killed at step {kill.step}" if kill else "to be complete"
            raise MeasureError(f"{name} was {wanted}, but ended with exit code {process.returncode}:\n{output}")
        return run


def _kill(process: subprocess.Popen[bytes], kill: Kill) -> str:
    """Kill one of the ranks or their launcher, with which all of them die; returns a description."""
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        children = []
    victims = [*((f"rank {rank}", int(pid)) for rank, pid in enumerate(children)), ("all", process.pid)]
    who, pid = victims[kill.victim % len(victims)]
    os.kill(pid, signal.SIGKILL)
    return f"{who} killed at step {kill.step}"


def verify(trainer: Trainer, *, num_kills: int, seed: int, profile: str) -> tuple[list[Run], list[str]]:
    """All runs, the uninterrupted one first, and every difference found.

    Raises:
        MeasureError: a run did not go as it should, so that nothing is shown.
    """
    reference = trainer.run("uninterrupted", f"profile={profile}")
    chance = random.Random(seed)  # noqa: S311 - picks moments, not secrets
    latest = int(KILLED_PART * reference.total_steps)
    if latest < num_kills:
        raise MeasureError(f"{reference.total_steps} steps are too few for {num_kills} kills: set more epochs")
    steps = sorted(chance.sample(range(1, latest + 1), num_kills))
    kills = [Kill(step=step, victim=chance.randrange(trainer.world_size + 1)) for step in steps]
    save = f"checkpointEverySteps={max(1, reference.total_steps // (2 * (num_kills + 1)))}"
    runs = [reference]
    with tempfile.TemporaryDirectory(prefix="verify-resume-") as folder:
        for attempt, kill in enumerate([*kills, None], start=1):
            environ = {contract.DDPJOB_CHECKPOINT_DIR: folder, contract.DDPJOB_ATTEMPT: str(attempt)}
            runs.append(trainer.run(f"attempt {attempt}", f"profile={profile}", save, environ=environ, kill=kill))
    if all(min(run.losses, default=1) == 1 for run in runs[2:]):
        raise MeasureError(
            "no attempt resumed, each began at step 1: nothing is shown; check whether checkpoints were saved and found, or"
            " take another --seed, if the kills came before the first checkpoint"
        )
    return runs, differences(reference, runs[1:])


def differences(reference: Run, attempts: Sequence[Run]) -> list[str]:
    """Each step whose loss differs, in any attempt, steps that no attempt took, and the weights; empty if all is equal."""
    found = [
        f"step {step}: loss {reference.losses.get(step)} uninterrupted, {loss} in {run.name}"
        for run in attempts
        for step, loss in run.losses.items()
        if reference.losses.get(step) != loss
    ]
    missing = sorted(reference.losses.keys() - {step for run in attempts for step in run.losses})
    if missing:
        found.append(f"steps {missing}: in no attempt")
    if reference.weights is None or attempts[-1].weights != reference.weights:
        found.append(f"weights sha256: {reference.weights} uninterrupted, {attempts[-1].weights} resumed")
    return found


def table(runs: Iterable[Run]) -> str:
    """One row for each run."""
    rows = [("run", "first step", "last step", "end")]
    rows += [(run.name, str(min(run.losses)), str(max(run.losses)), run.end) for run in runs if run.losses]
    return "\n".join(f"{name:<14}{first:>11}{last:>11}  {end}" for name, first, last, end in rows)


def cost_of_exact(trainer: Trainer) -> str:
    """Images per second of both profiles: the median of a run's log lines but the first, no step logged but every tenth."""
    rates = {}
    for profile in ("exact", "fast"):
        run = trainer.run(f"speed of {profile}", f"profile={profile}", log=False)
        rates[profile] = median(run.rates[1:] or run.rates)
    cost = 1 - rates["exact"] / rates["fast"]
    return f"exact {rates['exact']:,.0f} images/s, fast {rates['fast']:,.0f} images/s: exact costs {100 * cost:.1f} %"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--world-size", type=positive, default=2, help="ranks, on this machine")
    parser.add_argument("--kills", type=positive, default=3, help="how often the second training is killed")
    parser.add_argument("--seed", type=int, default=0, help="picks the steps and the victims")
    parser.add_argument("--profile", choices=("exact", "fast"), default="exact", help="the profile that is verified")
    parser.add_argument("--no-speed", action="store_true", help="do not measure what exact costs")
    parser.set_defaults(takes_others=True)


def run(given: argparse.Namespace) -> int:
    """Verify; the exit code is 1 where a bit differs.

    Raises:
        MeasureError: nothing could be shown.
    """
    trainer = Trainer(arguments=given.others, world_size=given.world_size, command=TRAINER)
    runs, found = verify(trainer, num_kills=given.kills, seed=given.seed, profile=given.profile)
    print(table(runs))
    if found:
        print("\n".join([f"NOT EQUAL: {len(found)} differences", *found[:20]]))
        return 1
    twice = sum(len(run.losses) for run in runs[1:]) - len(runs[0].losses)
    print(f"losses of {len(runs[0].losses)} steps ({twice} trained more than once): equal bit for bit")
    print(f"weights sha256 {runs[0].weights}: equal")
    if not given.no_speed:
        print(cost_of_exact(trainer))
    return 0
