"""What an operator's process costs, read from the kernel and from its own metrics page."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import testbed

START_SECONDS = 120.0
STOP_SECONDS = 15.0

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
    """Passes that failed."""


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
        (port,) = testbed.free_ports(1)
        super().__init__(None, f"http://127.0.0.1:{port}/metrics")
        self._ready_url = f"http://127.0.0.1:{port}/readyz"
        self._command = [sys.executable, "-m", "ddpjob_operator", "--trainer-image", "trainer:1"]
        self._command += ["--health-port", str(port), *arguments]
        self._kubeconfig, self._log, self._arguments = kubeconfig, log, arguments
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.stop()

    def another(self) -> DDPJobOperator:
        """One more that is told the same; it is not started."""
        return DDPJobOperator(self._kubeconfig, self._log, *self._arguments)

    def start(self) -> float:
        """Start it; gives the seconds until it is ready, its caches in step with the API server."""
        began = time.monotonic()
        environment = {**os.environ, "KUBECONFIG": str(self._kubeconfig)}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=environment, stdout=log, stderr=log)
        self.pid = self._process.pid
        testbed.wait_for("the operator to be ready", self._is_ready, seconds=START_SECONDS, every_seconds=0.02)
        return time.monotonic() - began

    def send(self, how: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None, "started"
        self._process.send_signal(how)

    def stop(self) -> None:
        """End it, if it has not ended, and wait for that."""
        process, self._process, self.pid = self._process, None, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise TimeoutError(f"the operator did not end within {STOP_SECONDS:.0f} s of SIGTERM") from None

    def num_complaints(self) -> int:
        """Warnings and errors in its log."""
        return len(re.findall(r"^\S+ \S+ (?:WARNING|ERROR) ", self._log.read_text(), re.MULTILINE))

    def _is_ready(self) -> bool:
        assert self._process is not None, "started"
        if (code := self._process.poll()) is not None:
            raise RuntimeError(f"the operator ended with code {code}:\n{self._log.read_text()[-4000:]}")
        try:
            return self._page(self._ready_url) == "ok\n"
        except (urllib.error.URLError, OSError):
            return False
