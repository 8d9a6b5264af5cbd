"""Which pods an operator may create, when, and what becomes of those that it should not have created."""

from ddpjob_operator.api.names import contract
from ddpjob_operator.core.times import epoch_seconds
from simulation.api_server import JOBS, PODS, Body, owner_uid
from simulation.invariants.bodies import Place, is_placeholder, is_true, name_of, num_nodes_of, place_of, replacement_of
from simulation.invariants.memory import JobFacts, Memory

#: How soon an operator whose watches work must have deleted a straggler.
STRAGGLER_SECONDS = 20.0


def check_created(memory: Memory, pod: Body, by: str) -> None:
    """A pod belongs to the current attempt, is the only one of its place, and follows only pods that have stopped."""
    metadata, world = pod["metadata"], memory.world
    job = world.server.by_uid(JOBS, owner_uid(pod))
    if job is None:
        return  # it was deleted a moment ago, and the garbage collector takes the pod
    if is_placeholder(pod):
        _check_placeholder(memory, pod, job, by)
        return
    name, uid = metadata["name"], metadata["uid"]
    labels = metadata["labels"]
    attempt, rank, replacement = place = place_of(pod)
    facts = memory.of(job)
    suffix = f"-r{replacement}" if replacement else ""
    memory.must(name == f"{job['metadata']['name']}-{attempt}-{rank}{suffix}", f"pod {name} is labelled {labels}")
    status = job.get("status") or {}
    current = status.get("attempt", 1)
    is_early = attempt > current or (attempt == current and replacement > replacement_of(status, rank))
    memory.must(not is_early, f"{name} is created by {by} before the status names its attempt or replacement")
    facts.created[place] += 1
    memory.counts["pod replaced"] += replacement > 0
    alone = memory.is_alone(by)
    if attempt < current or replacement < replacement_of(status, rank):
        _mark_straggler(memory, uid)
        memory.must(not alone, f"{name} is created by {by} although the job is at attempt {current}")
        return
    if not alone:
        memory.counts["pod of a second writer"] += 1
        return
    memory.must(facts.end is None, f"{name} is created by {by} after the end of the job")
    _check_size(memory, name, facts, attempt, num_nodes_of(pod), status, by)
    again = facts.created[place] > 1 and is_true(status, "Created")
    memory.must(not again, f"{name} is created a second time by {by}")
    if not _stopped_with_checkpoint(memory, job["metadata"]["uid"], attempt - 1):  # there is nothing to back off from
        _not_too_early(memory, name, status, by)
    _check_nothing_before_it_runs(memory, pod, job)
    master = job["metadata"]["uid"], attempt, replacement_of(status, 0)
    memory.must(
        facts.service_touched or world.cluster.programs.master_of(*master),
        f"{name} is created by {by} while no Service leads to rank 0 of attempt {attempt}",
    )


def _check_nothing_before_it_runs(memory: Memory, pod: Body, job: Body) -> None:
    """No pod that this one follows, of an earlier attempt or of its rank, may run on a node that lives."""
    name, uid, place = name_of(pod), pod["metadata"]["uid"], place_of(pod)
    for other in memory.world.server.all(PODS):
        if is_placeholder(other):
            continue
        if owner_uid(other) == job["metadata"]["uid"] and other["metadata"]["uid"] != uid:
            memory.must(not _may_run(memory, other, place), f"{name} is created while {name_of(other)} may run")
    _no_hidden_container_runs(memory, name, job["metadata"]["uid"], place)


def _mark_straggler(memory: Memory, uid: str) -> None:
    """A pod that a second writer has made too late must be deleted soon."""
    memory.stragglers.add(uid)
    memory.counts["straggler"] += 1
    memory.world.later(STRAGGLER_SECONDS, _straggler_is_deleted, memory, uid)


def _check_placeholder(memory: Memory, pod: Body, job: Body, by: str) -> None:
    """A pod without a program is created for a node that a running job lacks, once it has run on fewer for long enough."""
    attempt, rank, _ = place_of(pod)
    status, name = job.get("status") or {}, name_of(pod)
    memory.counts["place asked for"] += 1
    memory.must(attempt <= status.get("attempt", 1), f"{name} is created by {by} before the status names its attempt")
    if not memory.is_alone(by) or not is_true(status, "Running") or memory.clock_jumped_at > 0:
        return
    wanted, size = status.get("shrunkFrom"), status.get("replicas", 0)
    memory.must(memory.of(job).end is None, f"{name} is created by {by} after the end of the job")
    memory.must(wanted is not None and rank >= size, f"{name} is created by {by} for a job that runs on {size} nodes")
    limit = job["spec"]["deadlines"].get("fewerNodesSeconds", 1)  # somebody may have removed it a moment ago
    ran = memory.world.clocks.wall_of(by) - epoch_seconds(status["runningSince"]) if "runningSince" in status else limit
    memory.must(ran >= min(limit, 20) - 1.5, f"{name} is created by {by} after {ran:.1f} s on fewer nodes")


def check_placed(memory: Memory, pod: Body) -> None:
    """A scheduler of gangs gives no pod of a gang a node unless all of them, or minNodes, have had one at the end of its pass."""
    job = memory.world.server.by_uid(JOBS, owner_uid(pod))
    if job is not None and is_placeholder(pod):
        attempt, rank, _ = place_of(pod)
        memory.of(job).places.setdefault(attempt, set()).add(rank)
        return
    if job is None or not memory.world.schedule.gangs:
        return
    attempt, rank, _ = place_of(pod)
    placed = memory.of(job).placed.setdefault(attempt, set())
    placed.add(rank)

    def check() -> None:
        least = min(memory.world.schedule.min_nodes or num_nodes_of(pod), num_nodes_of(pod))
        memory.must(len(placed) >= least, f"only the ranks {placed} of the gang of {name_of(pod)} have a node")

    memory.world.later(0.0, check)


def _check_size(memory: Memory, name: str, facts: JobFacts, attempt: int, size: int, status: Body, by: str) -> None:
    """All pods of an attempt are of one size; it is smaller than wanted only after a wait, and never too small."""
    others = facts.sizes.setdefault(attempt, size)
    memory.must(size == others, f"{name} is one of {size} pods, and others of its attempt are of {others}")
    memory.counts["attempt of another size"] += facts.sizes.get(attempt - 1, size) != size
    schedule, wanted = memory.world.schedule, status.get("shrunkFrom")
    if wanted is None:
        return
    memory.counts["attempt on fewer nodes"] += 1
    least = schedule.min_nodes
    memory.must(least is not None and least <= size < wanted, f"{name} is one of {size} pods of {least} to {wanted}")
    wall = memory.world.clocks.wall_of(by)
    waited = wall - facts.began.get(attempt - 1, wall)
    queued = wall - epoch_seconds(status["queuedSince"]) if "queuedSince" in status else 0.0
    is_late = waited >= schedule.full_size_seconds - 1.5  # the status has whole seconds
    is_over = schedule.queue_seconds is not None and queued >= schedule.queue_seconds - 1.5
    on_time = is_late or is_over or memory.clock_jumped_at > 0
    memory.must(on_time, f"{name} is one of {size} pods after {waited:.1f} s, of {wanted} that are wanted")


def _not_too_early(memory: Memory, name: str, status: Body, by: str) -> None:
    retry_time = status.get("retryTime")
    if retry_time is not None and memory.world.now() > memory.clock_jumped_at + 60:
        early = epoch_seconds(retry_time) - memory.world.clocks.wall_of(by)
        memory.must(early <= 0.1, f"{name} is created {early:.1f} s before status.retryTime")


def _stopped_with_checkpoint(memory: Memory, job_uid: str, attempt: int) -> bool:
    """Whether rank 0 of this attempt has saved on request, which may show only after the failure was recorded."""
    boxes = (box.main for box in memory.world.cluster.sandboxes.values() if box.main.rank == 0)
    return any(
        main.job_and_attempt == (job_uid, attempt) and main.exit and main.exit.code == contract.EXIT_CHECKPOINTED
        for main in boxes
    )


def _may_run(memory: Memory, pod: Body, new: Place) -> bool:
    """Whether a pod that a new one follows may run on a node that lives, now or later."""
    metadata = pod["metadata"]
    if not _follows(new, place_of(pod)) or metadata["uid"] in memory.stragglers:
        return False
    sandbox = memory.world.cluster.sandboxes.get(metadata["uid"])
    if sandbox is None:
        return "deletionTimestamp" not in metadata and pod.get("status", {}).get("phase") != "Failed"
    return sandbox.runs and memory.node_lives(sandbox.node)


def _no_hidden_container_runs(memory: Memory, name: str, job_uid: str, new: Place) -> None:
    """Pods whose object is gone may still run: they must not have been removed so by us."""
    world = memory.world
    for uid, sandbox in world.cluster.sandboxes.items():
        of_job, attempt = sandbox.main.job_and_attempt
        followed = of_job == job_uid and _follows(new, (attempt, sandbox.main.rank, sandbox.main.replacement))
        if not sandbox.runs or not followed or uid in memory.forced | memory.stragglers:
            continue
        hidden = memory.node_lives(sandbox.node) and world.server.by_uid(PODS, uid) is None
        memory.must(not hidden, f"{name} is created while the containers of {sandbox.name} still run")


def _straggler_is_deleted(memory: Memory, uid: str) -> None:
    """Pods of past attempts that a second writer made are deleted on sight, by whoever sees."""
    pod = memory.world.server.by_uid(PODS, uid)
    job = memory.world.server.by_uid(JOBS, owner_uid(pod)) if pod else None
    if pod is None or job is None or not any(p.sees_well() for p in memory.world.processes):
        return
    sandbox = memory.world.cluster.sandboxes.get(uid)
    stays = "deletionTimestamp" not in pod["metadata"] and (sandbox is None or sandbox.runs)
    memory.must(not stays, f"the straggler {name_of(pod)} is left alone")


def _follows(new: Place, old: Place) -> bool:
    """Whether the new pod may be created only once the old one has stopped."""
    return new[0] != old[0] or (new[1] == old[1] and new[2] > old[2])
