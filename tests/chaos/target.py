"""The job that a fault is caused in: its pods and processes, and what is waited for after the fault."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import testbed
from chaos.laboratory import NAMESPACE, Laboratory
from chaos.marks import AllMarks
from ddpjob.client import ClientError, Job, Pod

#: Longest time from a fault to the second attempt's ranks having met.
RECOVERY_SECONDS = 150


@dataclass(slots=True)
class Target:
    """A job in the phase in which the fault is injected."""

    laboratory: Laboratory
    name: str
    in_place: bool = False
    """Whether the main process of a pod is a launcher, whose children are the ranks."""
    fault_at: float = 0.0
    """From when the time until it trains again counts; 0 before the fault."""
    drain: subprocess.Popen[str] | None = None
    job: Job | None = None
    """As it was seen last."""
    seen: list[str] = field(default_factory=list)
    """Every change of phase and reason that was seen, as one line each."""

    def look(self) -> Target:
        """Look at the job. While the API server does not answer, it is as it was seen last."""
        with suppress(ClientError):
            self.job = self.laboratory.client.get(self.name)
        line = f"attempt {self.attempt} {self.phase} {self.status.get('reason', '')}"
        if self.job and line not in self.seen[-1:]:
            self.seen.append(line)
        return self

    @property
    def status(self) -> dict[str, Any]:
        """The status as it was seen last."""
        return dict(self.job.body.get("status") or {}) if self.job else {}

    @property
    def attempt(self) -> int:
        """The current one."""
        return int(self.status.get("attempt", 1))

    @property
    def phase(self) -> str:
        """The phase in the status."""
        return str(self.status.get("phase", ""))

    @property
    def finished(self) -> bool:
        """Whether the job has ended for good."""
        return self.job is not None and self.job.finished

    def pods(self, attempt: int) -> dict[int, Pod]:
        """The pods of an attempt that are there, by rank."""
        return {pod.rank: pod for pod in self.laboratory.client.pods(self.job, attempt=attempt)} if self.job else {}

    def runs(self) -> bool:
        """Whether any pod of the job is there and has not ended."""
        return any(not _is_over(pod) for pod in self.laboratory.pods(self.name))

    def processes(self) -> list[int]:
        """The processes of this machine that belong to the job, whatever the cluster thinks of them."""
        assert self.job is not None, "it was applied"
        return testbed.pids_with(f"DDPJOB_UID={self.job.uid}")

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl in the job's namespace."""
        return self.laboratory.cluster.kubectl(*arguments, f"--namespace={NAMESPACE}", stdin=stdin)

    def pod(self, rank: int) -> str:
        """The name of a rank's pod in the first attempt."""
        return f"{self.name}-1-{rank}"

    def main_process(self, rank: int) -> int:
        """The first process of a rank's pod, on this machine."""
        return self.laboratory.cluster.container_pid(NAMESPACE, self.pod(rank), "trainer")

    def process(self, rank: int) -> int:
        """The process of a rank, on this machine."""
        main = self.main_process(rank)
        return testbed.child_named(main, f"rank {rank}") if self.in_place else main

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank's process."""
        os.kill(self.process(rank), number)

    def node(self) -> testbed.Node:
        """The node of rank 1; of a rank that has none yet, the second."""
        nodes = self.laboratory.cluster.nodes
        name = self.pods(1)[1].node
        return next((node for node in nodes if node.name == name), nodes[1])

    def marks(self) -> AllMarks:
        """What the ranks left behind."""
        return self.laboratory.marks(self.name)

    def wait_met_again(self) -> None:
        """Wait until a later attempt's ranks have met, or the first one's have in place, or the job has ended without that."""

        def met() -> bool:
            marks = self.marks()
            later = any(found.first("met") for (attempt, _), found in marks.items() if attempt > 1)
            return later or (self.in_place and self._begun(marks, self.fault_at)) or self.look().finished

        what = f"the ranks of {self.name} to meet again, or its end"
        testbed.wait_for(what, met, seconds=RECOVERY_SECONDS, every_seconds=0.1)

    def wait_begun_again(self, since: float) -> None:
        """Wait until rank 0 has begun to train again after this time, in the same attempt."""
        what = f"{self.name} to begin again in place"
        testbed.wait_for(what, lambda: self._begun(self.marks(), since), seconds=RECOVERY_SECONDS, every_seconds=0.1)

    @staticmethod
    def _begun(marks: AllMarks, since: float) -> bool:
        found = marks.get((1, 0))  # the rank may have had no node in this attempt
        return found is not None and found.first("begin", since=since) is not None


def _is_over(pod: dict[str, Any]) -> bool:
    status = pod.get("status", {})
    containers = status.get("containerStatuses", [])
    ended = bool(containers) and all("terminated" in container.get("state", {}) for container in containers)
    return ended or status.get("phase") in ("Succeeded", "Failed")
