"""Hands each change of the API server to the invariants of its topic."""

from collections.abc import Callable

from simulation.api_server import JOBS, PODS, SERVICES, Body
from simulation.invariants.bodies import is_operator, newly_marked
from simulation.invariants.created_pods import check_created, check_placed
from simulation.invariants.deleted_pods import check_deleted
from simulation.invariants.memory import Memory
from simulation.invariants.services import check_service
from simulation.invariants.statuses import check_status


class Violation(AssertionError):  # noqa: N818 it is what an assertion found, not an error of a caller
    """An invariant does not hold."""


class Checker:
    """Observes the API server."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def on_change(self, plural: str, old: Body | None, new: Body | None, by: str) -> None:
        """Check one change."""
        check = _CHECKS.get(plural)
        if check is not None:
            check(self._memory, old, new, by)


def _check_pod(memory: Memory, old: Body | None, new: Body | None, by: str) -> None:
    """Remember what others do with pods, and check what an operator does."""
    if new is not None and new.get("status", {}).get("phase") == "Failed":
        memory.failed_at.setdefault(new["metadata"]["uid"], memory.world.now())
    if by == "scheduler" and new is not None:
        memory.counts["gang refused"] += memory.world.schedule.gangs and "nodeName" not in new["spec"]
        if "nodeName" in new["spec"]:
            check_placed(memory, new)
    if not is_operator(by):
        if old is not None and (new is None or newly_marked(old, new)):
            memory.deleted_by_others.add(old["metadata"]["uid"])
        return
    if old is None and new is not None:
        check_created(memory, new, by)
    elif old is not None and (new is None or newly_marked(old, new)):
        check_deleted(memory, old, new, by)
    elif old is not None and new is not None and old["metadata"].get("labels") != new["metadata"].get("labels"):
        memory.must(False, f"{by} changes the labels of {old['metadata']['name']}")


_CHECKS: dict[str, Callable[[Memory, Body | None, Body | None, str], None]] = {
    PODS: _check_pod,
    JOBS: check_status,
    SERVICES: check_service,
}
