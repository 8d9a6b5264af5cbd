"""What must hold once a schedule is over."""

from ddpjob_operator.api import names
from simulation.api_server import JOBS, POD_GROUPS, PODS, owner_uid
from simulation.invariants.bodies import is_operator, is_placeholder, is_true, name_of
from simulation.invariants.memory import Memory


def nothing_runs_of(memory: Memory, job_uid: str) -> None:
    """After the end of a job, or of its object, no container of it runs."""
    for sandbox in memory.world.cluster.sandboxes.values():
        runs = sandbox.runs and sandbox.main.job_and_attempt[0] == job_uid
        memory.must(not runs, f"{sandbox.name} still runs although its job has ended")


def no_place_is_held(memory: Memory) -> None:
    """After the end of a job, or of its object, no pod holds a place for it."""
    held = [name_of(pod) for pod in memory.world.server.all(PODS) if is_placeholder(pod)]
    memory.must(not held, f"these pods still hold places: {held}")


def outdated_evidence_is_gone(memory: Memory) -> None:
    """Where nothing came in between, only the pods of the latest attempts are kept."""
    if memory.view_disturbed_at or len(memory.world.processes) > 1:
        return
    for pod in memory.world.server.all(PODS):
        if pod["metadata"]["uid"] in memory.stragglers:
            continue
        job = memory.world.server.by_uid(JOBS, owner_uid(pod))
        if job is not None and is_true(job.get("status") or {}, "Succeeded"):
            oldest = job["status"]["attempt"] - job["spec"].get("restart", {}).get("keepAttempts", 2)
            attempt = int(pod["metadata"]["labels"][names.LABEL_ATTEMPT])
            memory.must(attempt >= oldest, f"{name_of(pod)} is kept, and attempts before {oldest} should not be")


def checkpoints_were_fenced(memory: Memory) -> None:
    """No attempt has saved anything after a later one of the same job, and no pod of rank 0 after its successor."""
    newest: dict[str, tuple[int, int]] = {}
    for job_uid, *owner in memory.world.cluster.programs.commits:
        attempt, replacement = owner
        before = newest.setdefault(job_uid, (attempt, replacement))
        memory.must(before <= (attempt, replacement), f"attempt and replacement {owner} save after {before}")
        newest[job_uid] = attempt, replacement


def no_new_pod_timed_out(memory: Memory) -> None:
    """Where nothing came in between, no new pod has timed out waiting for ranks that had succeeded, or for other new pods."""
    if memory.view_disturbed_at or memory.clock_jumped_at or len(memory.world.processes) > 1:
        return
    timed_out = memory.world.cluster.programs.timed_out
    waits = "new pods of these jobs and attempts have waited for ranks that had succeeded, or for each other"
    memory.must(not timed_out, f"{waits}: {timed_out}")


def no_group_is_left(memory: Memory) -> None:
    """After the end of a job, or of its object, there is no PodGroup of it."""
    for group in memory.world.server.all(POD_GROUPS):
        job = memory.world.server.by_uid(JOBS, owner_uid(group))
        runs = job is not None and memory.of(job).end is None
        memory.must(runs, f"the PodGroup {name_of(group)} is left")


def no_write_changed_nothing(memory: Memory) -> None:
    """No operator's patch of a status or a Service left everything as it was."""
    idle = [entry for entry in memory.world.server.idle_patches if entry[0] != PODS and is_operator(entry[2])]
    memory.must(not idle, f"patches that changed nothing: {idle}")


def nothing_was_asked_twice(memory: Memory) -> None:
    """No operator has sent a creation or a deletion again that had been answered well and still held."""
    for process in memory.world.processes:
        memory.must(not process.repeated, f"{process.name} has sent again: {process.repeated}")
