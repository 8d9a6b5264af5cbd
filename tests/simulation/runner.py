"""Leads a world through a schedule: the disturbances, then calm, then health, and at last rest."""

from collections import Counter
from dataclasses import dataclass

from ddpjob_operator.api.names import Reason
from simulation import convergence
from simulation.api_server import JOBS, POD_GROUPS, PODS, SERVICES, owner_uid
from simulation.disturbances import disturb
from simulation.invariants import afterwards
from simulation.invariants.checker import Violation
from simulation.schedule import Schedule
from simulation.world import FIRST, SECOND, World

#: How long the operator may take, once nothing disturbs it, to end a job or to say what it waits for.
CALM_SECONDS = 1500.0
#: What was written so lately may be a step on the way; what is stuck was written long ago.
MOTION_SECONDS = 90.0
#: How long a job may take to its end once nothing is missing: clock jumps and deadlines included.
HEALTH_SECONDS = 3 * 3600.0
#: After the end: until the last container is gone, and how long nothing is written then.
SETTLE_SECONDS = 400.0
REST_SECONDS = 700.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a schedule went."""

    counts: Counter[str]
    """How often things happened in it."""


def run(schedule: Schedule) -> Outcome:
    """Live through a schedule. Raises Violation where an invariant does not hold."""
    return lead(World(schedule))


def traced(schedule: Schedule) -> str:
    """The story of a schedule, with its violation at the end."""
    world = World(schedule)
    world.trace.lines = []
    try:
        lead(world)
    except Violation as violation:
        world.trace.say(f"VIOLATION: {violation}")
    return "\n".join(world.trace.lines)


def lead(world: World) -> Outcome:
    """Live through the schedule of a world. Raises Violation where an invariant does not hold."""
    with world.in_place(), convergence.checked(world):
        world.loop.run_until_complete(_live(world))
    return Outcome(counts=world.counts + world.memory.counts)


async def _live(world: World) -> None:
    world.apply_job()
    world.start_operator(FIRST)
    for step in world.schedule.steps:
        await world.sleep(step.after_seconds)
        world.trace.say(f"--- {step.do} ({step.pick})")
        disturb(world, step)
    world.trace.say("--- calm")
    _calm_down(world)
    if not await world.wait_until(lambda: _is_over(world), CALM_SECONDS):
        _check_that_it_says_why(world)
        world.counts["stated wait"] += 1
    world.trace.say("--- health")
    for process in world.operators.values():
        process.fault_percent = 0
    world.heal()
    if (job := world.job()) and job["spec"].get("suspend"):
        world.patch_spec({"suspend": False})
    if not await world.wait_until(lambda: _is_over(world), HEALTH_SECONDS):
        world.fail(f"{HEALTH_SECONDS:.0f} s after all was well the job has not ended: {_shown(world)}")
    await _rest(world)


def _calm_down(world: World) -> None:
    world.calm = True
    for process in world.operators.values():
        process.faults.clear()
        process.calls_to_death = None
    if not world.schedule.second_operator_stays:
        world.stop_operator(SECOND)


def _is_over(world: World) -> bool:
    job = world.job()
    if job is None:
        return True
    conditions = (job.get("status") or {}).get("conditions", ())
    return any(c["type"] in ("Succeeded", "Failed") and c["status"] == "True" for c in conditions)


def _check_that_it_says_why(world: World) -> None:
    """A job that is not over says what it waits for, and it is true."""
    status, job = world.status(), world.job()
    assert job is not None
    reason, server, programs = status.get("reason"), world.server, world.programs
    ready = [node for node in world.cluster.nodes.values() if node.ready]
    something_runs = any(sandbox.runs for sandbox in world.cluster.sandboxes.values())
    hung = world.schedule.reads_progress and programs.stuck_seconds("hang") > 3 * world.schedule.hang_seconds + 200
    # Counted from a time of the kubelet's, so that it passes later for an operator's clock that was set back.
    set_back_seconds = max(0.0, -min(world.clocks.offset_seconds.values()))
    unfinished = programs.stuck_seconds("straggle") > world.schedule.finish_seconds + set_back_seconds + 200
    causes: dict[str, bool] = {
        Reason.SUSPENDED: bool(job["spec"].get("suspend")),
        Reason.POD_REJECTED: server.webhook_is_broken or _names_are_taken(world),
        Reason.QUOTA_EXCEEDED: server.pod_quota is not None,
        Reason.IMAGE_PULL: world.cluster.image_is_missing,
        Reason.UNSCHEDULABLE: sum(node.places for node in ready) < job["spec"]["nodes"] or _names_are_taken(world),
        Reason.RUNNING: something_runs and not hung and not unfinished,
        Reason.FINISHING: something_runs and not unfinished,
        Reason.STARTING: something_runs or world.cluster.image_is_missing,
        Reason.STOPPING: _names_are_taken(world),
        Reason.BACKING_OFF: bool(status.get("retryTime")),
    }
    # A deadline of the API server's is far off by an operator's clock that was set back; it says what it waits for.
    behind = set_back_seconds > MOTION_SECONDS
    causes[reason or ""] = causes.get(reason or "", False) or (behind and "waiting for" in status.get("message", ""))
    in_motion = world.now() - world.memory.status_written_at < MOTION_SECONDS
    if not (causes.get(reason or "") or in_motion) or not status.get("message"):
        world.fail(f"the job is not over and does not say why: {_shown(world)}")


def _names_are_taken(world: World) -> bool:
    """Whether something of a stranger, or of an earlier job on a lost node, is in the way."""
    job = world.job()
    others = (owner_uid(body) for plural in (PODS, SERVICES, POD_GROUPS) for body in world.server.all(plural))
    return job is not None and any(owner != job["metadata"]["uid"] for owner in others)


def _shown(world: World) -> str:
    status = world.status()
    return f"{status.get('phase')}, {status.get('reason')}: {status.get('message')}"


async def _rest(world: World) -> None:
    """After its end nothing of the job runs, and nobody writes anything, a new operator included."""
    job, memory = world.job(), world.memory
    await world.sleep(SETTLE_SECONDS)
    uids = {owner_uid(pod) for pod in world.server.all(PODS)} | {
        s.main.job_and_attempt[0] for s in world.cluster.sandboxes.values()
    }
    for uid in uids:
        if world.server.by_uid(JOBS, uid) is None or (job is not None and uid == job["metadata"]["uid"]):
            afterwards.nothing_runs_of(memory, uid)
    afterwards.no_place_is_held(memory)
    if not world.schedule.fault_percent:
        afterwards.outdated_evidence_is_gone(memory)
    afterwards.checkpoints_were_fenced(memory)
    afterwards.no_new_pod_timed_out(memory)
    afterwards.no_group_is_left(memory)
    afterwards.no_write_changed_nothing(memory)
    afterwards.nothing_was_asked_twice(memory)
    before = world.num_write_calls()
    await world.sleep(REST_SECONDS)
    world.stop_operator(FIRST)
    world.start_operator(FIRST)
    await world.sleep(30.0)
    if world.num_write_calls() != before:
        world.fail(f"{world.num_write_calls() - before} writes although nothing has changed")
    world.counts["job deleted" if job is None else f"ended {job['status'].get('phase')}"] += 1
