"""Trainings that are started as users start them: by a command, with the launcher. Each rank loads torch itself.

forked_ranks starts ranks at a sixth of the cost, for tests of what ranks do once they run.
"""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ddpjob_ranks import contract
from support.processes import DEADLINE_SECONDS, ForkedProgram, Printed, await_text, pid_of_rank
from testbed import free_ports

TRAINER = (sys.executable, "-m", "ddpjob_trainer")


@dataclass(kw_only=True)
class Run(Printed):
    """A training under way, or at its end."""

    process: subprocess.Popen[str] | ForkedProgram
    message_path: Path
    lines: list[str] = field(default_factory=list)
    reader: threading.Thread = field(init=False)

    def wait(self) -> int:
        """The exit code."""
        code = self.process.wait(timeout=DEADLINE_SECONDS)
        self.reader.join(timeout=DEADLINE_SECONDS)
        return code

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first match in its output, which must come before the deadline and the end of the process."""
        return await_text(pattern, self.printed, lambda: self.process.poll() is not None and not self.reader.is_alive())

    def follow(self) -> None:
        """Collect output from now on."""

        def read() -> None:
            assert self.process.stdout is not None
            for line in self.process.stdout:
                self.lines.append(line.rstrip("\n"))

        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()

    def printed(self) -> str:
        """Its output so far, both streams."""
        return "\n".join(self.lines)

    text = property(printed)

    @property
    def message(self) -> str:
        """Its termination message."""
        return self.message_path.read_text()

    def pid_of_rank(self, rank: int) -> int:
        """The process of a rank that is started in place."""
        return pid_of_rank(self.process.pid, rank)

    def rank_pids(self) -> list[int]:
        """The launcher's children."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]


@contextmanager
def started(
    folder: Path,
    *keys: str,
    ranks: int = 1,
    command: tuple[str, ...] = TRAINER,
    environ: Mapping[str, str] | None = None,
    is_forked: bool = False,
) -> Iterator[Run]:
    """Start a training, of the digits where the keys name no other recipe, by the launcher if it has several ranks.

    It is killed at the end of the block.

    Args:
        folder: For the termination message, and as HOME.
        keys: `key=value` of the configuration.
        ranks: Processes to start; 0 leaves that to `command` and `environ`.
        command: What to run; gets the configuration as arguments.
        environ: Further variables.
        is_forked: Whether the interpreter is forked with torch loaded, and what a launcher forks its ranks from.
    """
    folder.mkdir(parents=True, exist_ok=True)
    message_path = folder / f"termination-log-{time.monotonic_ns()}"
    message_path.touch()
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": ":".join(path for path in sys.path if path),
        "HOME": str(folder),
        contract.DDPJOB_TERMINATION_LOG: str(message_path),
        **({contract.NPROC_PER_NODE: str(ranks), contract.MASTER_PORT: str(*free_ports(1))} if ranks else {}),
        **(environ or {}),
    }
    arguments = [*command, *with_recipe(*keys)]
    process = (
        ForkedProgram(arguments[1:], variables)
        if is_forked
        else subprocess.Popen(
            arguments, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
    )
    run = Run(process=process, message_path=message_path)
    run.follow()
    try:
        yield run
    finally:
        process.kill()
        process.wait()


def finished(folder: Path, *keys: str, expected: int = 0, **settings: object) -> Run:
    """The same, run to its end, which must be the expected exit code."""
    with started(folder, *keys, **settings) as run:  # type: ignore[arg-type]  # passed through
        code = run.wait()
        assert code == expected, f"exit code {code}:\n{run.text}"
        return run


def with_recipe(*keys: str) -> list[str]:
    """The trainer's arguments for these keys, with the digits where they name no recipe."""
    chosen = keys if any(key.startswith("recipe=") for key in keys) else ("recipe=digits", *keys)
    return [part for key in chosen for part in ("--set", key)]


def job(folder: Path, *, attempt: int = 1, uid: str = "u1") -> dict[str, str]:
    """The variables of a job that saves its checkpoints in a directory of this one."""
    return {
        contract.DDPJOB_CHECKPOINT_DIR: str(folder / "checkpoints"),
        contract.DDPJOB_UID: uid,
        contract.DDPJOB_ATTEMPT: str(attempt),
    }


def ranks_by_hand(world_size: int) -> list[dict[str, str]]:
    """What the operator gives to pods of one process each, all on this machine."""
    port = str(*free_ports(1))
    return [
        {
            contract.RANK: str(rank),
            contract.WORLD_SIZE: str(world_size),
            contract.LOCAL_RANK: "0",
            contract.LOCAL_WORLD_SIZE: "1",
            contract.NODE_RANK: str(rank),
            contract.NPROC_PER_NODE: "1",
            contract.MASTER_ADDR: "127.0.0.1",
            contract.MASTER_PORT: port,
        }
        for rank in range(world_size)
    ]
