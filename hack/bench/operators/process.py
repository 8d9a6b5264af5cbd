"""What an operator's process costs, read from the kernel and from its own metrics page."""

from __future__ import annotations

import os
import re
import signal
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from support.operator_process import OperatorProcess

#: The counters of this operator, and those of every operator that is built on Go's client-go.
_REQUESTS = re.compile(r"^(?:ddpjob_api_requests_total|rest_client_requests_total)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_PASSES = re.compile(r'^ddpjob_reconciles_total\{result="(failed|defect)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Readings of one moment. The difference of two is what happened between them."""

    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    """Resident set size."""
    peak_memory_bytes: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    """Requests sent so far, by verb and resource, for example `create pods`."""
    num_errors: int = 0
    """Reconciles that failed."""


def cpu_seconds_of(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class OperatorUnderTest:
    """A process that runs already, and perhaps its metrics page. Without a process id its cost is unknown."""

    def __init__(self, pid: int | None, metrics_url: str | None) -> None:
        self.pid = pid
        self._metrics_url = metrics_url

    def cost(self) -> Cost:
        """What it has cost since it started."""
        cpu_seconds, memory, peak = 0.0, 0, 0
        if self.pid is not None:
            cpu_seconds = cpu_seconds_of(self.pid)
            status = Path(f"/proc/{self.pid}/status").read_text()
            memory, peak = (int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) * 1024 for name in ("VmRSS", "VmHWM"))
        page = self._page(self._metrics_url) if self._metrics_url else ""
        requests: Counter[str] = Counter()
        for labels, value in _REQUESTS.findall(page):
            given = dict(_LABEL.findall(labels))
            what = f"{given.get('verb') or given.get('method', '?')} {given.get('resource', '')}".strip()
            requests[what] += round(float(value))
        return Cost(
            cpu_seconds=cpu_seconds,
            memory_bytes=memory,
            peak_memory_bytes=peak,
            requests=requests,
            num_errors=sum(round(float(value)) for _, value in _PASSES.findall(page)),
        )

    @staticmethod
    def _page(url: str) -> str:
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 an address that the user gave
            return str(answer.read().decode())


class DDPJobOperator(OperatorUnderTest):
    """This project's operator, as a process of our own. It takes its code from PYTHONPATH."""

    def __init__(self, kubeconfig: Path, log: Path, *arguments: str) -> None:
        self._process = OperatorProcess(kubeconfig, log, *arguments)
        super().__init__(None, f"http://127.0.0.1:{self._process.port}/metrics")
        self._kubeconfig, self._arguments = kubeconfig, arguments

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.running:
            self.stop()

    def another(self) -> DDPJobOperator:
        """One more with the same arguments; it is not started."""
        return DDPJobOperator(self._kubeconfig, self._process.log, *self._arguments)

    def start(self) -> float:
        """Start it; gives the seconds until it is ready, its caches in step with the API server."""
        began = time.monotonic()
        self._process.start()
        assert self._process.process is not None, "started"
        self.pid = self._process.process.pid
        return time.monotonic() - began

    def send(self, how: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send(how)

    def stop(self) -> None:
        """End it, if it has not ended, and wait for that."""
        self.pid = None
        self._process.stop()

    def num_complaints(self) -> int:
        """Warnings and errors in its log."""
        return len(re.findall(r"^\S+ \S+ (?:WARNING|ERROR) ", self._process.log.read_text(), re.MULTILINE))
