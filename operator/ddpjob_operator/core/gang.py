"""The pods of a job, sorted by what they are to its current attempt."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.model import Observed, Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """The current attempt's pods, and what is left of earlier attempts and of pods that were replaced in this one."""

    num_nodes: int
    current: Mapping[int, Pod]
    """Pods of the current attempt by node rank."""
    old: tuple[Pod, ...]
    """Pods of earlier attempts and replaced ones, oldest first: stragglers, survivors and evidence."""
    placeholders: tuple[Pod, ...] = ()
    """Pods without a program that hold places for missing nodes, of any attempt."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Node ranks of the current attempt without a pod."""
        return tuple(rank for rank in range(self.num_nodes) if rank not in self.current)

    @property
    def num_placed(self) -> int:
        """Ranks that have a node."""
        return sum(pod.node is not None for pod in self.current.values())

    @property
    def all_scheduled(self) -> bool:
        """Whether every rank has a node."""
        return self.num_placed == self.num_nodes

    @property
    def is_refused_a_node(self) -> bool:
        """Whether a rank finds no node, although the scheduler may consider its pod."""
        return any(pod.node is None and pod.waiting and not pod.is_gated for pod in self.current.values())

    @property
    def starting(self) -> tuple[Pod, ...]:
        """Pods whose program neither runs nor has ended, by node rank."""
        return tuple(pod for _, pod in sorted(self.current.items()) if not pod.running and pod.exit is None)

    @property
    def unfinished(self) -> tuple[Pod, ...]:
        """Pods whose program has not succeeded, by node rank."""
        return tuple(pod for _, pod in sorted(self.current.items()) if not pod.succeeded)

    @property
    def num_up(self) -> int:
        """Ranks whose program runs or has succeeded."""
        return sum(pod.running or pod.succeeded for pod in self.current.values())

    @property
    def all_up(self) -> bool:
        """Whether every rank's program runs or has succeeded."""
        return self.num_up == self.num_nodes

    @property
    def first_success(self) -> float | None:
        """When this process saw the first program succeed, in seconds since the epoch; None while none has."""
        ends = (pod.exit.seen or pod.exit.finished for pod in self.current.values() if pod.exit and pod.succeeded)
        return min((end for end in ends if end is not None), default=None)

    @property
    def all_succeeded(self) -> bool:
        """Whether every rank's program has succeeded."""
        return not self.missing and all(pod.succeeded for pod in self.current.values())


def gang_of(observed: Observed, num_nodes: int) -> Gang:
    """The job's pods, sorted. Those of a later attempt or replacement than the status' belong to a newer writer and are ignored."""
    status = observed.job.status
    ranks = [pod for pod in observed.pods if not pod.is_placeholder]
    done = (pod for pod in observed.vanished if pod.succeeded)  # somebody deleted it afterwards; its success counts
    current = {pod.rank: pod for pod in (*done, *observed.pods) if pod.rank < num_nodes and is_current(pod, status)}
    return Gang(
        num_nodes=num_nodes,
        current=current,
        old=tuple(sorted((pod for pod in ranks if _age(pod, status) > 0), key=_order)),
        placeholders=tuple(pod for pod in observed.pods if pod.is_placeholder),
    )


def rank0_of(pods: Iterable[Pod], status: DDPJobStatus) -> Pod | None:
    """The pod of rank 0 in the current attempt, which prints the progress. One that was replaced may still exist."""
    return next((pod for pod in pods if pod.rank == 0 and is_current(pod, status)), None)


def is_current(pod: Pod, status: DDPJobStatus) -> bool:
    """Whether the pod is that of its rank in the current attempt."""
    return _age(pod, status) == 0 and not pod.is_placeholder


def _age(pod: Pod, status: DDPJobStatus) -> int:
    """0 for the current pod of its rank, more for one of an earlier attempt or that was replaced, less for a later one."""
    return status.attempt - pod.attempt or status.replacement(pod.rank) - pod.replacement


def _order(pod: Pod) -> tuple[int, int, int]:
    return pod.attempt, pod.rank, pod.replacement
