"""The job that a fault is caused in: its pods and processes, and what is waited for after the fault."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field

import testbed
from chaos.laboratory import NAMESPACE, Laboratory
from chaos.recovery import AllMarks
from chaos.story import Story

#: Longest time from a fault to the second attempt's ranks having met.
RECOVERY_SECONDS = 150


@dataclass(slots=True)
class Target:
    """A job in the phase in which the fault is injected, and what is measured on the way."""

    laboratory: Laboratory
    job: str
    in_place: bool = False
    """Whether the main process of a pod is a launcher, whose children are the ranks."""
    facts: dict[str, float] = field(default_factory=dict)
    """Further figures of the cell, in seconds."""
    fault_at: float = 0.0
    """From when the recovery is timed; 0 before the fault."""
    resumed_at: float | None = None
    drain: subprocess.Popen[str] | None = None

    @property
    def story(self) -> Story:
        """What was seen of the job."""
        return self.laboratory.stories[self.job]

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl in the job's namespace."""
        return self.laboratory.cluster.kubectl(*arguments, f"--namespace={NAMESPACE}", stdin=stdin)

    def pod(self, rank: int) -> str:
        """The name of a rank's pod in the first attempt."""
        return f"{self.job}-1-{rank}"

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
        name = self.story.of(1)[1].node
        return next((node for node in nodes if node.name == name), nodes[1])

    def wait_met_again(self) -> None:
        """Wait until a later attempt's ranks have met, or the first one's have in place, or the job has ended without that."""

        def met() -> bool:
            marks = self.laboratory.marks(self.job)
            later = any(found.first("met") for (attempt, _), found in marks.items() if attempt > 1)
            return self.story.finished or later or (self.in_place and self._begun(marks, self.fault_at))

        what = f"the ranks of {self.job} to meet again, or its end"
        testbed.wait_for(what, met, seconds=RECOVERY_SECONDS, every_seconds=0.1)

    def wait_begun_again(self, since: float) -> None:
        """Wait until rank 0 has begun to train again after this time, in the same attempt."""

        def begun() -> bool:
            return self._begun(self.laboratory.marks(self.job), since)

        testbed.wait_for(f"{self.job} to begin again in place", begun, seconds=RECOVERY_SECONDS, every_seconds=0.1)

    @staticmethod
    def _begun(marks: AllMarks, since: float) -> bool:
        found = marks.get((1, 0))  # the rank may have had no node in this attempt
        return found is not None and found.first("begin", since=since) is not None
