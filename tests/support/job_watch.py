"""`kubectl get ddpjob --watch` in the background: the rows that a user who watches jobs sees."""

from __future__ import annotations

import subprocess
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import testbed
from testbed import tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line about a job. Columns without a value are blank, so only the columns at both ends can be identified."""

    line: str

    @property
    def state(self) -> str:
        """The column STATE."""
        return self.line.split()[2]

    @property
    def reason(self) -> str:
        """The column REASON, the last but one."""
        return self.line.split()[-2]


@dataclass(slots=True)
class JobWatch:
    """A context manager around one kubectl that watches the jobs of all namespaces.

    Attributes:
        kubeconfig: of the cluster.
        file: where kubectl writes what it shows.
    """

    kubeconfig: Path
    file: Path
    _kubectl: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        command = [str(tools.path("kubectl")), f"--kubeconfig={self.kubeconfig}"]
        with self.file.open("wb") as output:
            self._kubectl = subprocess.Popen(
                [*command, "get", "ddpjob", "--all-namespaces", "--watch"], stdout=output, stderr=subprocess.STDOUT
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        assert self._kubectl is not None, "entered"
        self._kubectl.terminate()
        self._kubectl.wait(timeout=240)

    @property
    def header(self) -> str:
        """The line above the rows."""
        return self.file.read_text().split("\n", 1)[0]

    def rows(self, namespace: str, name: str) -> list[Row]:
        """What was shown of a job so far."""
        complete, _, _ = self.file.read_text().rpartition("\n")
        return [Row(line=line) for line in complete.splitlines() if line.split()[:2] == [namespace, name]]

    def wait_row(
        self, namespace: str, name: str, *, state: str = "", reason: str = "", behind: int = 0, seconds: float
    ) -> int:
        """Wait for a row of a job with this state and this reason, not among the first `behind`; gives its number."""

        def number() -> int | None:
            for found, row in enumerate(self.rows(namespace, name)):
                if found >= behind and state in ("", row.state) and reason in ("", row.reason):
                    return found + 1
            return None

        what = f"kubectl get to show job {name} with state {state or 'any'} and reason {reason or 'any'}"
        return testbed.wait_for(what, number, seconds=seconds, every_seconds=0.1) - 1
