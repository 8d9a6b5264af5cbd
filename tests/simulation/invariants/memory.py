"""What all invariants of one schedule share: the world, and what they remember of it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from simulation.api_server import NODES, ApiServer, Body
from simulation.invariants.bodies import Place
from simulation.nodes import Cluster
from simulation.operator_process import OperatorProcess
from simulation.schedule import Schedule
from simulation.virtual_time import OperatorClocks

#: A node that came back may have been read as lost so long before: reads may be slow or fail.
NODE_NEWS_SECONDS = 70.0
#: How long an operator may know nothing new after its watches were held up.
VIEW_SECONDS = 320.0


class World(Protocol):
    """What the checks look at."""

    server: ApiServer
    cluster: Cluster
    clocks: OperatorClocks
    processes: list[OperatorProcess]
    schedule: Schedule

    def fail(self, message: str) -> None:
        """End the schedule with this violation."""

    def now(self) -> float:
        """The loop's clock."""

    def later(self, seconds: float, call: Callable[..., Any], *arguments: Any) -> None:
        """Do something in a while."""


@dataclass(slots=True)
class JobFacts:
    """What is remembered of one job object."""

    created: Counter[Place] = field(default_factory=Counter)
    """Pods by attempt, rank and replacement."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Number of nodes by attempt, as its pods have it."""
    placed: dict[int, set[int]] = field(default_factory=dict)
    """By attempt the ranks that have had a node."""
    places: dict[int, set[int]] = field(default_factory=dict)
    """By attempt the ranks for which a pod without a program has had a place."""
    began: dict[int, float] = field(default_factory=dict)
    """status.attemptStartTime of each attempt, in seconds since the epoch."""
    end: Body | None = None
    service_touched: bool = False
    """Whether somebody else has changed or removed the Service."""


@dataclass(slots=True)
class Memory:
    """What is remembered of one world."""

    world: World
    jobs: dict[str, JobFacts] = field(default_factory=dict)
    """By the uid of the job."""
    stragglers: set[str] = field(default_factory=set)
    """uids of pods that a second writer has created too late."""
    forced: set[str] = field(default_factory=set)
    """uids of pods whose objects somebody removed although they may run."""
    deleted_by_others: set[str] = field(default_factory=set)
    """uids of pods that somebody else than an operator has marked or removed."""
    failed_at: dict[str, float] = field(default_factory=dict)
    """When the API server first showed a pod's end, by uid."""
    clock_jumped_at: float = 0.0
    view_disturbed_at: float = 0.0
    """When the watches of an operator were held up or broken last."""
    status_written_at: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    """How often the rarer things happened."""

    def of(self, job: Body) -> JobFacts:
        """What is remembered of this job."""
        return self.jobs.setdefault(job["metadata"]["uid"], JobFacts())

    def must(self, holds: bool, message: str) -> None:
        """End the schedule with this violation unless something holds."""
        if not holds:
            self.world.fail(message)

    def is_alone(self, by: str) -> bool:
        """Whether nobody else can have written lately: no other process, and no request of a dead one on its way."""
        process = next(process for process in reversed(self.world.processes) if process.name == by)
        if process.has_late_requests:
            return False
        since = max(process.started_at, self.world.now() - VIEW_SECONDS)
        return not any(p is not process and p.could_write_since(since) for p in self.world.processes)

    def view_was_disturbed(self) -> bool:
        """Whether an operator may still act by a view that was held up, or by a request that was late."""
        return bool(self.view_disturbed_at) and self.world.now() - self.view_disturbed_at <= VIEW_SECONDS

    def node_lives(self, name: str) -> bool:
        """Whether anybody who read this node lately must have found it alive."""
        node = self.world.cluster.nodes.get(name)
        exists = node is not None and self.world.server.find(NODES, name) is not None
        return exists and node is not None and node.ready and node.back_at + NODE_NEWS_SECONDS < self.world.now()
