"""The real `ddpjob run --local` command and a look at the real processes that it starts."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from testbed import pids_with

#: Every process of a run inherits this variable, by which it is found in /proc whatever its parent or session.
MARK = "LOCAL_RUN_MARK"
#: Longest wait for anything. Two attempts of two ranks under torchrun took more than four minutes on two cores with a load of 45.
DEADLINE_SECONDS = 540


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a command ended."""

    exit_code: int
    output: str

    @property
    def status(self) -> dict[str, Any]:
        """The status block that the command prints at its end."""
        _, _, rest = self.output.partition("\nstatus:\n")
        block = [line for line in rest.splitlines() if line.startswith((" ", "-"))]
        status: dict[str, Any] = yaml.safe_load("\n".join(block))
        return status

    def lines_of(self, rank: int, title: str = "rank") -> list[str]:
        """What the pod of this node rank printed."""
        prefix = f"[{title} {rank}] "
        return [line.removeprefix(prefix) for line in self.output.splitlines() if line.startswith(prefix)]

    def json_of(self, rank: int) -> list[dict[str, Any]]:
        """Lines of this rank that are JSON objects."""
        return [json.loads(line) for line in self.lines_of(rank) if line.startswith("{")]


class LocalCommand:
    """A running `ddpjob run --local`. A context that leaves no process behind, so that a failing test does not."""

    def __init__(self, file: Path, folder: Path, arguments: tuple[str, ...] = ()) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ddpjob_cli", "run", "--local", "-o", "yaml", str(file), *arguments],
            cwd=folder,
            env={**os.environ, MARK: self.mark, "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pid in self.processes():
            with suppress(ProcessLookupError):  # it has ended
                os.kill(pid, signal.SIGKILL)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def processes(self) -> list[int]:
        """Every living process of the run but the command itself."""
        return [pid for pid in pids_with(self.mark) if pid != self.process.pid]

    def programs(self) -> list[int]:
        """The same without the command's own reapers: what the user's command has started."""
        reapers = pids_with("reaper.py", file="cmdline")
        return [pid for pid in self.processes() if pid not in reapers]

    def outcome(self) -> Outcome:
        """Wait for the end."""
        output, _ = self.process.communicate(timeout=DEADLINE_SECONDS)
        return Outcome(exit_code=self.process.returncode, output=output)


def write_job(folder: Path, spec: Mapping[str, Any], name: str = "job") -> Path:
    """A manifest with this spec."""
    job = {"apiVersion": "ddpjob.dev/v1beta1", "kind": "DDPJob", "metadata": {"name": name}, "spec": spec}
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(job), encoding="utf-8")
    return file


def run_job(folder: Path, spec: Mapping[str, Any]) -> Outcome:
    """Run a job with this spec to its end."""
    with LocalCommand(write_job(folder, spec), folder) as command:
        outcome = command.outcome()
        assert command.processes() == []
        return outcome
