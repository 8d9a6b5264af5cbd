"""Long-running programs of a cluster: started with a log file, registered before they run, and reported with the end of their log if they die.

A process id alone does not identify a process for long, because the kernel assigns it again. Together with its start time it names one process for
as long as the machine is up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from testbed.errors import TestbedError
from testbed.waiting import DeadlineError, wait_for

#: Runs before the program, in its process: joins the control groups named by the first words up to "--", then writes its own
#: /proc entry (process id and start time survive exec) into the journal. So there is no moment at which the program runs and
#: the journal does not know it, whenever the starting process is killed.
_REGISTER = """
journal=$1; name=$2; shift 2
while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 125; shift; done
shift
read -r stat < /proc/self/stat
printf '{"kind": "process", "name": "%s", "stat": "%s"}\\n' "$name" "$stat" >> "$journal"
exec "$@"
"""

#: How many lines of a log an error shows.
TAIL_LINES = 25


class ComponentError(TestbedError):
    """A component of the cluster ended, or was not ready in time."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessId:
    """One process, for ever: its id and its start time in clock ticks since boot."""

    pid: int
    started: int

    @classmethod
    def from_stat(cls, stat: str) -> ProcessId:
        """From a line of /proc/PID/stat: the first field, and the 22nd."""
        # The second field is the program's name in parentheses and may hold spaces and parentheses itself.
        return cls(int(stat.split(maxsplit=1)[0]), int(stat.rpartition(")")[2].split()[19]))

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """The process that has the id `pid` now. Raises `ProcessLookupError` if there is none."""
        try:
            return cls.from_stat(Path(f"/proc/{pid}/stat").read_text())
        except FileNotFoundError:
            raise ProcessLookupError(f"no process has the id {pid}") from None

    @property
    def alive(self) -> bool:
        """Whether it runs. A zombie does not."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return ProcessId.from_stat(stat) == self and stat.rpartition(")")[2].split()[0] not in "ZX"

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            wait_for(f"process {self.pid} to end after SIGKILL", lambda: not self.alive, every_seconds=0.01)


@dataclasses.dataclass(slots=True, kw_only=True)
class Component:
    """One program of the cluster: may be started, killed and started again.

    `ready` answers whether it serves; `start` waits for that, for at most `ready_seconds`.
    """

    name: str
    command: Sequence[str | Path]
    log: Path
    journal: Path
    ready: Callable[[], bool]
    ready_seconds: float = 240
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    control_groups: Sequence[Path] = ()
    _process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start the program and return at once."""
        assert not self.alive, f"{self.name} runs already"
        register: list[str | Path] = [
            "/bin/sh",
            "-c",
            _REGISTER,
            "sh",
            self.journal,
            self.name,
            *self.control_groups,
            "--",
        ]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*register, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                cwd=self.log.parent,
                # A Ctrl-C in the terminal is for the owner, who ends its components in order.
                start_new_session=True,
            )

    def start(self) -> None:
        """Start the program and wait until it serves."""
        self.launch()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the program serves.

        Raises:
            ComponentError: it ended, or did not serve within `ready_seconds`; with the end of its log.
        """
        try:
            wait_for(f"{self.name} to be ready", self._ready_or_dead, seconds=self.ready_seconds, every_seconds=0.02)
        except DeadlineError as error:
            raise ComponentError(f"{error}\n{self.tail()}") from None

    def _ready_or_dead(self) -> bool:
        self.check()
        return self.ready()

    def check(self) -> None:
        """Raise `ComponentError` if the program has ended."""
        assert self._process is not None, f"{self.name} was never started"
        if (code := self._process.poll()) is not None:
            raise ComponentError(f"{self.name} ended with code {code}, expected to run\n{self.tail()}")

    @property
    def alive(self) -> bool:
        """Whether the program runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the running program."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def tail(self) -> str:
        """The last lines of its log, under a heading that names the file."""
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:] if self.log.exists() else []
        return "\n".join([f"--- last lines of {self.log}", *lines])


def is_running(pid: int) -> bool:
    """Whether there is a process with this id that is no zombie."""
    with contextlib.suppress(ProcessLookupError):
        return ProcessId.of(pid).alive
    return False


def pids_with(text: str | Path, *, file: str = "environ", name: str | None = None) -> list[int]:
    """The processes of this machine whose environment has the text, or with `file="cmdline"` their command line.

    With `name` only those that are called so. Processes of other users are left out.
    """

    def matches(process: Path) -> bool:
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            is_called_so = name is None or (process / "comm").read_text(encoding="utf-8").strip() == name
            return is_called_so and os.fsencode(text) in (process / file).read_bytes()
        return False

    return [int(process.name) for process in Path("/proc").glob("[0-9]*") if matches(process)]


def child_named(parent: int, name: str) -> int:
    """The process id of the child that has this name.

    Raises:
        ProcessLookupError: there is none.
    """
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() == name:
                return int(pid)
    raise ProcessLookupError(f"process {parent} has no child {name!r}")
