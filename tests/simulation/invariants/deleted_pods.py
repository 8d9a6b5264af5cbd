"""Which pods an operator may delete, and which of them by force."""

from simulation.api_server import JOBS, Body, owner_uid
from simulation.invariants.bodies import is_placeholder, place_of, replacement_of
from simulation.invariants.memory import Memory


def check_deleted(memory: Memory, old: Body, new: Body | None, by: str) -> None:
    """A pod is outdated or its job has ended, its log is no evidence, and none is removed while it runs on a living node."""
    metadata, world = old["metadata"], memory.world
    job = world.server.by_uid(JOBS, owner_uid(old))
    memory.must(bool(owner_uid(old)), f"{by} deletes {metadata['name']}, which is a stranger's")
    if job is None or is_placeholder(old):
        return
    spec, status = job["spec"], job.get("status") or {}
    facts = memory.of(job)
    (attempt, rank, replacement), current = place_of(old), status.get("attempt", 1)
    sandbox = world.cluster.sandboxes.get(metadata["uid"])
    if new is None and sandbox is not None and sandbox.runs:
        lives = memory.node_lives(sandbox.node)
        memory.must(not lives, f"{by} removes {metadata['name']} by force although it runs on a living node")
        memory.counts["force deletion on a lost node"] += 1
    is_current = attempt > current or (attempt == current and replacement >= replacement_of(status, rank))
    ours = is_current and facts.end is None
    memory.must(not ours, f"{by} deletes {metadata['name']}, a pod of the current attempt {current}")
    if not memory.is_alone(by):
        return
    outlived = facts.end is not None and "ttlSecondsAfterFinished" in spec
    if (
        sandbox is not None
        and sandbox.kill_timer is None
        and not outlived
        and _is_known_to_have_failed(memory, metadata["uid"])
    ):
        num_kept = spec.get("restart", {}).get("keepAttempts", 2)
        is_recent = attempt < current or replacement >= replacement_of(status, rank) - num_kept
        kept = attempt >= current - num_kept and is_recent and (num_kept > 0 or is_current)
        memory.must(not kept, f"{by} deletes {metadata['name']}, whose log is evidence")


def _is_known_to_have_failed(memory: Memory, uid: str) -> bool:
    """Whether every operator must have seen its end before it decided anything that arrives now."""
    if memory.world.schedule.fault_percent:
        return False  # the request may have been on its way for long
    now = memory.world.now()
    return memory.failed_at.get(uid, now) < now - 5 and not memory.view_was_disturbed()
