"""What an operator may write into the status of a job."""

import re

from ddpjob_operator.api.names import Reason
from ddpjob_operator.core.times import epoch_seconds
from simulation.api_server import NODES, Body
from simulation.containers import Gang
from simulation.invariants.bodies import is_operator, is_true, name_of, num_restarts, replacement_of, restarts
from simulation.invariants.memory import JobFacts, Memory

#: Ends of an attempt that no failure has caused.
_NO_FAILURE = frozenset({Reason.SUSPENDED, Reason.SPEC_CHANGED, Reason.RESIZED})
_PLACES = re.compile(r"there are places for (\d+) of")


def check_status(memory: Memory, old: Body | None, new: Body | None, by: str) -> None:
    """Attempts go up one by one, restarts are counted once and within their bounds, and an end is final."""
    if old is None or new is None or not is_operator(by):
        return
    memory.status_written_at = memory.world.now()
    facts, status, before = memory.of(new), new["status"], old.get("status") or {}
    name = name_of(new)
    if "attempt" not in status:
        memory.world.fail(f"{by} writes a status of {name} without an attempt: {status}")
        return
    memory.must(new["spec"] == old["spec"], f"{by} changes the spec of {name}")
    if facts.end is not None:
        same = _without_generations(status) == _without_generations(facts.end)
        memory.must(same, f"{by} changes the status of {name} after its end: {_difference(facts.end, status)}")
    if "attemptStartTime" in status:
        facts.began[status["attempt"]] = epoch_seconds(status["attemptStartTime"])
    step = status["attempt"] - before.get("attempt", 1)
    memory.must(step in (0, 1), f"{by} takes {name} from attempt {before.get('attempt')} to {status['attempt']}")
    gang = memory.world.cluster.programs.gangs.get((new["metadata"]["uid"], before.get("attempt", 1)))
    _counted(memory, name, before, status, num_restarts_in_place=gang.num_restarts if gang else 0)
    if gang is not None:
        _check_joins(memory, name, gang, before, status)
    _check_growth(memory, name, facts, before, status)
    times = (status.get("restarts") or {}).get("countedTimes", ())
    most = new["spec"].get("restart", {}).get("maxRestarts", len(times))
    rose = restarts(status, "counted") > restarts(before, "counted")
    memory.must(not rose or len(times) <= most, f"{name}: {len(times)} restarts are counted, and {most} are allowed")
    _check_failure(memory, new, status.get("failure") or {}, before.get("failure") or {})
    past = [failure["attempt"] for failure in status.get("attempts", ()) if not failure.get("replaced")]
    memory.must(past == sorted(set(past)), f"{name} remembers the attempts {past}")
    if is_true(status, "Succeeded") or is_true(status, "Failed"):
        facts.end = facts.end or status
        _ended(memory, new, status)


def _counted(memory: Memory, name: str, before: Body, status: Body, *, num_restarts_in_place: int) -> None:
    """Each attempt that a failure ended is counted once, as one or the other; a loss whose new pod came too late, when that was decided.

    With it the restarts in place that its ranks have reported, which no more are than there were.
    """
    step = status["attempt"] - before.get("attempt", 1)
    more = num_restarts(status) - num_restarts(before)
    failure = status.get("failure") or {}
    failed = step == 1 and failure.get("attempt") == before.get("attempt", 1) and not failure.get("replaced")
    failed = failed and failure.get("reason") not in _NO_FAILURE and status["reason"] not in _NO_FAILURE
    failed = failed and not _was_replaced(before.get("failure") or {}, failure)
    violation = f"{name}: restarts {before.get('restarts')} → {status.get('restarts')} with failure {failure}"
    replaced = restarts(status, "podReplacements") - restarts(before, "podReplacements")
    memory.must(replaced in (0, 1) and (not replaced or (step == 0 and failure.get("replaced", False))), violation)
    once = 1 if failed or replaced else 0
    in_place = max(0, num_restarts_in_place - restarts(before, "inPlaceCounted")) if step or replaced else 0
    memory.must(once <= more <= once + in_place, violation)
    memory.counts["restart"] += step


def _check_joins(memory: Memory, name: str, gang: Gang, before: Body, status: Body) -> None:
    """No pod is replaced while the new pod of another rank has not joined: new pods alone would wait for each other.

    And none that has joined is said to come too late.
    """
    waits = [pod for pod in before.get("replacedPods", ()) if not gang.has_joined(pod["rank"], pod["replacement"])]
    if restarts(status, "podReplacements") != restarts(before, "podReplacements"):
        left = [pod for pod in waits if replacement_of(status, pod["rank"]) == pod["replacement"]]
        memory.must(not left, f"{name} replaces a pod while others have not joined: {left}")
    if status["attempt"] != before.get("attempt", 1):
        is_late = "before its new pod joined" in status.get("message", "")
        memory.must(bool(waits) or not is_late, f"{name}: {status.get('message')}")


def _was_replaced(before: Body, failure: Body) -> bool:
    """Whether this is the loss for which a pod was replaced."""
    return before.get("replaced", False) and all(
        before.get(key) == failure.get(key) for key in ("attempt", "pod", "time")
    )


def _check_growth(memory: Memory, name: str, facts: JobFacts, before: Body, status: Body) -> None:
    """No attempt ends for places that were not there."""
    said = _PLACES.match(status.get("message", ""))
    if said is None or status["attempt"] == before.get("attempt", 1):
        return
    memory.counts["grew"] += 1
    held = facts.places.get(before.get("attempt", 1), set())
    memory.must(len(held) >= int(said[1]), f"{name} stops for {said[1]} places, and only the ranks {held} had one")


def _check_failure(memory: Memory, job: Body, failure: Body, before: Body) -> None:
    """What a failure says of a pod, a node or a person is true."""
    if failure == before or not failure.get("pod"):
        return
    boxes = [
        box
        for box in memory.world.cluster.sandboxes.values()
        if box.name == failure["pod"] and box.main.job_and_attempt[0] == job["metadata"]["uid"]
    ]
    if not boxes:
        return
    name, code = name_of(job), failure.get("exitCode")
    codes = [box.main.exit.code for box in boxes if box.main.exit is not None]
    memory.must(code is None or code in codes, f"{name}: the exit codes of {failure['pod']} were {codes}: {failure}")
    if failure["reason"] == Reason.POD_DELETED:
        by_others = any(box.uid in memory.deleted_by_others for box in boxes)
        memory.must(by_others, f"{name}: nobody but the operator has deleted {failure['pod']}: {failure}")
    if failure["reason"] == Reason.NODE_LOST:
        node = memory.world.cluster.nodes[failure["node"]]
        shown = memory.world.server.find(NODES, node.name)
        lost = shown is None or not node.ready or node.back_at > 0
        memory.must(lost, f"{name}: node {node.name} was never lost: {failure}")


def _ended(memory: Memory, job: Body, status: Body) -> None:
    """An end says when and why; success needs that every rank has exited with code 0."""
    uid, attempt, name = job["metadata"]["uid"], status["attempt"], name_of(job)
    memory.must(bool(status.get("completionTime")), f"{name} has ended without status.completionTime")
    memory.must(bool(status.get("reason")) and bool(status.get("message")), f"{name} has ended without a word")
    if is_true(status, "Succeeded"):
        memory.must(not is_true(status, "Failed"), f"{name} has both succeeded and failed")
        gang = memory.world.cluster.programs.gangs.get((uid, attempt))
        codes = [c.exit.code if c.exit else None for c in gang.ranks.values()] if gang else []
        # As many as the attempt had: somebody may edit the spec of a job that has ended.
        num_nodes = gang.num_nodes if gang else job["spec"]["nodes"]
        memory.must(codes == [0] * num_nodes, f"{name} is said to have succeeded; its ranks: {codes}")


def _without_generations(status: Body) -> Body:
    """The status apart from the generations of the spec that it and its conditions are for."""
    conditions = [{**condition, "observedGeneration": 0} for condition in status.get("conditions", ())]
    return {**status, "observedGeneration": 0, "conditions": conditions}


def _difference(old: Body, new: Body) -> str:
    """The fields that differ, as text."""
    keys = [key for key in {*old, *new} if old.get(key) != new.get(key)]
    return ", ".join(f"{key}: {old.get(key)} → {new.get(key)}" for key in sorted(keys))
