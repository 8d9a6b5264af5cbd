"""How long a training needs from SIGKILL of a rank to the next step that is done, by what starts its ranks again.

Two ranks train the digits on this machine, without containers:

- `tier 1`: `ddpjob run --local` with `restart.inPlace`, whose ranks start again in their pods.
- `tier 2`: launchers as in two pods. The one of rank 1 is killed with its rank, and another one starts at the same moment, as if a
  container cost nothing.
- `spare`: the same, and the other one has been started before, as a spare pod that waits.
- `tier 3`: `ddpjob run --local` without it, whose gang starts again.
- `torchrun`: one elastic agent with two ranks (`--standalone --max-restarts`), which restarts both of them.

Trials are interleaved, so that other load on the machine meets all of them. `python -m bench.recovery` prints a table.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import yaml

from ddpjob_ranks import contract
from testbed import free_ports, pids_with

#: Longest wait for anything. A machine with much else to do needs a minute to import torch.
DEADLINE_SECONDS = 240.0
POLL_SECONDS = 0.002
KILL_AT_STEP = 60
#: At the step at which the rank is killed, 5 steps are in no checkpoint.
CHECKPOINT_EVERY_STEPS = 55
#: Far more than a trial takes.
EPOCHS = 400
MARK = "BENCH_RECOVERY_MARK"
STEP_DONE = re.compile(r"^epoch \d+ step (\d+)/", re.MULTILINE)
GOES_ON = re.compile(r"^resumed from step (\d+) [\s\S]*?^epoch \d+ step (\d+)/", re.MULTILINE)
TRAINER = {"recipe": "digits", "epochs": EPOCHS, "logEverySteps": 1}
KEYS = [part for key, value in TRAINER.items() for part in ("--set", f"{key}={value}")]
KEYS += ["--set", f"checkpointEverySteps={CHECKPOINT_EVERY_STEPS}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one kill cost."""

    seconds: float
    """Until the next step was done, which may be one that is repeated."""
    num_repeated: int
    """Steps that had been done before and were done again."""


class Training:
    """Two ranks under way in a folder of their own; killed at the end of the context."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._mark = uuid.uuid4().hex

    def start(self, command: Sequence[str], log: str = "log", **variables: str) -> subprocess.Popen[bytes]:
        """A process of it, whose output goes to this file."""
        environ = {**os.environ, "OMP_NUM_THREADS": "1", MARK: self._mark, **variables}
        output = self._stack.enter_context((self.folder / log).open("wb"))
        process = subprocess.Popen(
            command, cwd=self.folder, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def text(self) -> str:
        """What rank 0 has printed, in all attempts."""
        logs = [*sorted(self.folder.glob(".ddpjob/runs/*/logs/*-0.log")), *self.folder.glob("log")]
        return "".join(path.read_text(errors="replace") for path in logs)

    def wait_for(self, what: str, found: Callable[[], re.Match[str] | None]) -> re.Match[str]:
        """The match, once it is there.

        Raises:
            RuntimeError: it did not come in time.
        """
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (match := found()) is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what} did not come within {DEADLINE_SECONDS:g} s:\n{self.text()}")
            time.sleep(POLL_SECONDS)
        return match

    def end(self) -> None:
        """Kill all processes, of which some have lost their parent, and wait for their end."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while left := pids_with(self._mark):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise RuntimeError(f"these processes still run: {left}")
            time.sleep(POLL_SECONDS)

    def pid_of_rank_1(self) -> int:
        """Of a fork, which is named after its rank, or of a trainer that has its rank in its environment."""
        for pid in pids_with(self._mark):
            process = Path(f"/proc/{pid}")
            with suppress(OSError):  # it has ended
                if (process / "comm").read_text().strip() == "rank 1":
                    return pid
                variables = (process / "environ").read_bytes().split(b"\0")
                runs_trainer = b"-m\0ddpjob_trainer\0" in (process / "cmdline").read_bytes()
                is_launcher = any(name.startswith(contract.DDPJOB_IN_PLACE_RESTARTS.encode()) for name in variables)
                if runs_trainer and not is_launcher and b"RANK=1" in variables:
                    return pid
        raise RuntimeError(f"no process of rank 1 was found:\n{self.text()}")


def local(training: Training, *, in_place: bool) -> Callable[[], None]:
    """`ddpjob run --local`; returns what kills rank 1."""
    volume = {"persistentVolumeClaim": {"claimName": "checkpoints"}}
    spec = {
        "nodes": 2,
        "trainer": TRAINER,
        "checkpoint": {"everySteps": CHECKPOINT_EVERY_STEPS, "volume": volume},
        "restart": {"inPlace": in_place, "maxRestarts": 3},
    }
    job = {"apiVersion": "ddpjob.dev/v1beta1", "kind": "DDPJob", "metadata": {"name": "bench"}, "spec": spec}
    (training.folder / "job.yaml").write_text(yaml.safe_dump(job))
    training.start([sys.executable, "-m", "ddpjob_cli", "run", "--local", "job.yaml"], "command.log")
    return lambda: os.kill(training.pid_of_rank_1(), signal.SIGKILL)


def torchrun(training: Training) -> Callable[[], None]:
    """One elastic agent; returns what kills rank 1."""
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=3", "-m", "ddpjob_trainer", *KEYS]
    checkpoints = {contract.DDPJOB_CHECKPOINT_DIR: str(training.folder / "checkpoints")}
    training.start([sys.executable, "-m", "torch.distributed.run", *options], **checkpoints)
    return lambda: os.kill(training.pid_of_rank_1(), signal.SIGKILL)


def launchers(training: Training, *, spare: bool) -> Callable[[], None]:
    """A launcher for each rank; returns what kills that of rank 1, and its rank with it, and starts another one, or assigns a spare one."""
    (port,) = free_ports(1)
    variables = {
        contract.WORLD_SIZE: "2",
        contract.LOCAL_RANK: "0",
        contract.LOCAL_WORLD_SIZE: "1",
        contract.MASTER_ADDR: "127.0.0.1",
        contract.MASTER_PORT: str(port),
        contract.DDPJOB_UID: "bench",
        contract.DDPJOB_ATTEMPT: "1",
        contract.DDPJOB_IN_PLACE_RESTARTS: "3",
        contract.DDPJOB_REPLACEMENT_SECONDS: "200",
    }
    command = [sys.executable, "-m", "ddpjob_trainer", *KEYS]
    training.start(command, **variables, RANK="0")
    second = training.start(command, "second.log", **variables, RANK="1")
    third = variables | {contract.RANK: "1", contract.NODE_RANK: "1", contract.DDPJOB_REPLACEMENTS: "1:1"}
    assignment = training.folder / "assignment"
    if spare:
        assignment.touch()
        ready = str(training.folder / "ready")
        files = {contract.DDPJOB_SPARE_ASSIGNMENT: str(assignment), contract.DDPJOB_SPARE_READY: ready}
        training.start(command, "third.log", **variables | files | {contract.RANK: "unassigned"})
        waits = re.compile("this pod is a spare")
        training.wait_for("the spare launcher", lambda: waits.search((training.folder / "third.log").read_text()))

    def replace() -> None:
        second.kill()
        if spare:
            (training.folder / "new").write_text(json.dumps(third))
            (training.folder / "new").rename(assignment)
        else:
            training.start(command, "third.log", **third)

    return replace


WAYS: Mapping[str, Callable[[Training], Callable[[], None]]] = {
    "tier 1": lambda training: local(training, in_place=True),
    "tier 2": lambda training: launchers(training, spare=False),
    "spare": lambda training: launchers(training, spare=True),
    "tier 3": lambda training: local(training, in_place=False),
    "torchrun": torchrun,
}


def repeated_steps(before: str, resumed: int) -> int:
    """How many steps are done again after a training that printed `before` went on from this step."""
    return max(0, max(map(int, STEP_DONE.findall(before))) - resumed)


def trial(way: str) -> Trial:
    """Start a training, kill rank 1, and wait for the next step."""
    with tempfile.TemporaryDirectory(prefix="ddpjob-bench-") as name, ExitStack() as stack:
        training = Training(Path(name), stack)
        stack.callback(training.end)
        kill = WAYS[way](training)
        first = re.compile(rf"^epoch \d+ step {KILL_AT_STEP}/", re.MULTILINE)
        training.wait_for(f"step {KILL_AT_STEP}", lambda: first.search(training.text()))
        before = len(training.text())
        killed_at = time.monotonic()
        kill()
        match = training.wait_for("a step after the kill", lambda: GOES_ON.search(training.text(), before))
        seconds = time.monotonic() - killed_at
        return Trial(seconds=seconds, num_repeated=repeated_steps(training.text()[: match.start()], int(match[1])))


def table(trials: Mapping[str, Sequence[Trial]], conditions: Mapping[str, str], where: str) -> str:
    """The result for people, in Markdown. `where` says what ran where."""
    lines = [
        "# From SIGKILL of a rank to the next step",
        "",
        "; ".join(f"{name} {value}" for name, value in conditions.items()) + ".",
        where,
        "",
        "| started again by | p50 | least | most | steps repeated, p50 |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for way, some in trials.items():
        seconds = [one.seconds for one in some]
        repeated = statistics.median(one.num_repeated for one in some)
        lines.append(
            f"| {way} | {statistics.median(seconds):.2f} s | {min(seconds):.2f} s | {max(seconds):.2f} s | {repeated:g} |"
        )
    return "\n".join(lines) + "\n"


def _conditions(num_trials: int) -> dict[str, str]:
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "trials of each": str(num_trials),
        "CPU": f"{os.cpu_count()} x {model[1] if model else platform.machine()}",
        "kernel": platform.release(),
        "Python": platform.python_version(),
        "torch": version("torch"),
        "load before": f"{os.getloadavg()[0]:.1f}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def arguments_of(ways: Iterable[str], description: str, programs: Sequence[str] = ()) -> argparse.Namespace:
    """What the command line says: `trials`, `ways`, `results` and, where there are several, the `program`."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=10, help="of each (default: %(default)s)")
    parser.add_argument("--ways", nargs="+", choices=ways, default=list(ways), metavar="WAY", help=", ".join(ways))
    parser.add_argument("--results", type=Path, metavar="DIR", help="also write <name>-<date>.md and .json there")
    if programs:
        parser.add_argument("--program", choices=programs, default=programs[0], help="(default: %(default)s)")
    return parser.parse_args()


def compare(arguments: argparse.Namespace, trial: Callable[[str], Trial], *, name: str, where: str) -> None:
    """Run all trials, print the table, and record it under this name."""
    if arguments.results:
        arguments.results.mkdir(parents=True, exist_ok=True)  # before the trials, which take minutes
    conditions = _conditions(arguments.trials)
    trials: dict[str, list[Trial]] = {way: [] for way in arguments.ways}
    for number in range(1, arguments.trials + 1):
        for way, some in trials.items():
            some.append(trial(way))
            print(
                f"trial {number}, {way}: {some[-1].seconds:.2f} s, {some[-1].num_repeated} steps repeated", flush=True
            )
    text = table(trials, conditions, where)
    print(f"\n{text}", end="")
    if arguments.results:
        file = arguments.results / f"{name}-{conditions['date']}.md"
        file.write_text(text)
        seconds = {way: [round(one.seconds, 3) for one in some] for way, some in trials.items()}
        repeated = {way: [one.num_repeated for one in some] for way, some in trials.items()}
        content = {"conditions": conditions, "seconds": seconds, "steps_repeated": repeated}
        file.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    """Compare the ways that need no container."""
    where = "The digits on two ranks of one machine; `hack/bench/recovery.py` says what each row is."
    compare(arguments_of(WAYS, __doc__ or ""), trial, name="recovery", where=where)


if __name__ == "__main__":
    main()
