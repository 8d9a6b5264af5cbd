"""What the operator's process costs, read from the kernel and from its own metrics page."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from support.operator_process import OperatorProcess

_REQUESTS = re.compile(r"^ddpjob_api_requests_total\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_FAILED = re.compile(r'^ddpjob_reconciles_total\{result="(?:failed|defect)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Readings of one moment. The difference of two is what happened between them."""

    cpu_seconds: float
    memory_bytes: int
    """Resident set size."""
    peak_memory_bytes: int
    requests: Counter[str] = field(default_factory=Counter)
    """Requests sent so far, by verb and resource, for example `create pods`."""
    num_errors: int
    """Reconciles that failed."""


def cpu_seconds_of(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class TimedOperator(OperatorProcess):
    """The operator, as a process of our own."""

    @property
    def pid(self) -> int:
        """Of the process, which has been started."""
        assert self.process is not None, "it was never started"
        return self.process.pid

    def cost(self) -> Cost:
        """What it has cost since it started."""
        status, page = Path(f"/proc/{self.pid}/status").read_text(), self.get("/metrics")
        memory, peak = (int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) * 1024 for name in ("VmRSS", "VmHWM"))
        requests: Counter[str] = Counter()
        for labels, value in _REQUESTS.findall(page):
            given = dict(_LABEL.findall(labels))
            requests[f"{given['verb']} {given['resource']}"] += round(float(value))
        return Cost(
            cpu_seconds=cpu_seconds_of(self.pid),
            memory_bytes=memory,
            peak_memory_bytes=peak,
            requests=requests,
            num_errors=sum(round(float(value)) for value in _FAILED.findall(page)),
        )

    def num_complaints(self) -> int:
        """Warnings and errors in its log."""
        return len(re.findall(r"^\S+ \S+ (?:WARNING|ERROR) ", self.log.read_text(), re.MULTILINE))
