"""What the cluster reported of one job, and when it arrived: the lives of its pods and the statuses that the operator wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from chaos.api import Body

TERMINAL = ("Succeeded", "Failed")


@dataclass(slots=True)
class PodLife:
    """When news of a pod arrived, in seconds since the epoch; None if it did not."""

    created: float
    scheduled: float | None = None
    unschedulable: float | None = None
    ended: float | None = None
    gone: float | None = None
    node: str | None = None

    @property
    def stopped(self) -> float | None:
        """When its program was known to have ended."""
        return min((time for time in (self.ended, self.gone) if time is not None), default=None)

    def learn(self, body: Body, deleted: bool, arrival: float) -> None:
        """Take a change of the pod into account."""
        status = body.get("status", {})
        if self.scheduled is None and body["spec"].get("nodeName"):
            self.scheduled, self.node = arrival, body["spec"]["nodeName"]
        if self.unschedulable is None and any(c.get("reason") == "Unschedulable" for c in status.get("conditions", [])):
            self.unschedulable = arrival
        containers = status.get("containerStatuses", [])
        if self.ended is None and containers and all("terminated" in c.get("state", {}) for c in containers):
            self.ended = arrival
        if self.gone is None and deleted:
            self.gone = arrival


@dataclass(slots=True)
class Story:
    """One job. Filled by the watches, read by the cell."""

    uid: str = ""
    status: dict[str, Any] = field(default_factory=dict)
    attempts: dict[int, float] = field(default_factory=dict)
    """When each attempt beyond the first showed in the status."""
    pods: dict[tuple[int, int], PodLife] = field(default_factory=dict)
    """By attempt and rank."""
    seen: list[str] = field(default_factory=list)
    """Every change of phase and reason, as one line each."""
    first_arrival: float = 0.0

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
        return self.phase in TERMINAL

    def of(self, attempt: int) -> dict[int, PodLife]:
        """The pods of an attempt by rank."""
        return {rank: life for (number, rank), life in list(self.pods.items()) if number == attempt}

    def alive(self) -> Iterator[str]:
        """The pods that are there and have not ended, as attempt-rank."""
        for (attempt, rank), life in list(self.pods.items()):
            if life.stopped is None:
                yield f"{attempt}-{rank}"

    def learn_job(self, body: Body, deleted: bool, arrival: float) -> None:
        """Take a change of the job into account."""
        if deleted:
            return
        self.uid = body["metadata"]["uid"]
        self.first_arrival = self.first_arrival or arrival
        self.status = body.get("status") or {}
        self.attempts.setdefault(self.attempt, arrival)
        line = f"attempt {self.attempt} {self.phase} {self.status.get('reason', '')}"
        if not self.seen or not self.seen[-1].endswith(line):
            self.seen.append(f"{arrival - self.first_arrival:7.2f} s  {line}")

    def learn_pod(self, body: Body, deleted: bool, arrival: float) -> None:
        """Take a change of a pod of this job into account."""
        labels = body["metadata"]["labels"]
        key = (int(labels["ddpjob.dev/attempt"]), int(labels["ddpjob.dev/rank"]))
        self.pods.setdefault(key, PodLife(created=arrival)).learn(body, deleted, arrival)
