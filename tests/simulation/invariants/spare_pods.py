"""When an operator may create spare pods, and which of them may become the pods of which ranks."""

import json

from ddpjob_operator.api import names
from ddpjob_operator.api.names import contract
from ddpjob_operator.core.spare_pods import RETRY_SECONDS
from simulation.api_server import JOBS, PODS, Body, owner_uid
from simulation.invariants.bodies import is_spare, name_of, num_nodes_of, place_of, replacement_of
from simulation.invariants.created_pods import check_nothing_before_it_runs, mark_straggler
from simulation.invariants.memory import Memory

#: More than the steps of a schedule.
MOST_AT_ONCE = 30
_OF_A_RANK = {names.LABEL_RANK, names.LABEL_REPLACEMENT, names.LABEL_SPARE}


def check_spare(memory: Memory, pod: Body, by: str) -> None:
    """A spare pod is created only for a gang that runs, and no more than the job asks for."""
    job = memory.world.server.by_uid(JOBS, owner_uid(pod))
    if job is None:
        return  # it was deleted a moment ago, and the garbage collector takes the pod
    status, name = job.get("status") or {}, name_of(pod)
    attempt, _, _ = place_of(pod)
    memory.counts["spare pod"] += 1
    _not_too_often(memory, name, memory.of(job).spares_created.setdefault(name, []))
    memory.must(attempt <= status.get("attempt", 1), f"{name} is created by {by} before the status names its attempt")
    if not memory.is_alone(by) or memory.view_was_disturbed() or memory.world.schedule.fault_percent:
        return
    memory.must(memory.of(job).end is None, f"{name} is created by {by} after the end of the job")
    others = [
        other
        for other in memory.world.server.all(PODS)
        if owner_uid(other) == owner_uid(pod) and place_of(other)[0] == attempt
    ]
    ranks = {place_of(other)[1] for other in others if not is_spare(other) and "nodeName" in other["spec"]}
    memory.must(len(ranks) == num_nodes_of(pod), f"{name} is created by {by} and only the ranks {ranks} have a node")
    num_spares = sum(map(is_spare, others))
    memory.must(num_spares <= 2, f"{by} has created {num_spares} spare pods")


def _not_too_often(memory: Memory, name: str, created: list[float]) -> None:
    """One that has ended is created again after a wait, and at once only when somebody deletes it or edits the job."""
    if memory.clock_jumped_at:
        return  # by a clock that is minutes ahead of the cluster's, the wait is over at once
    created.append(memory.world.now())
    most = MOST_AT_ONCE + (created[-1] - created[0]) / RETRY_SECONDS
    memory.must(len(created) <= most, f"{name} is created {len(created)} times in {created[-1] - created[0]:.0f} s")


def check_taken_over(memory: Memory, old: Body, new: Body, by: str) -> None:
    """A spare pod that waits becomes once the pod of the rank for which the status names it, after the pod before it has stopped."""
    name, place, world = name_of(new), place_of(new), memory.world
    labels, before = new["metadata"]["labels"], old["metadata"]["labels"]
    changed = {key for key in {*labels, *before} if labels.get(key) != before.get(key)}
    memory.must(is_spare(old) and not is_spare(new), f"{by} changes the labels of {name}: {before} → {labels}")
    memory.must(changed <= _OF_A_RANK, f"{by} changes the labels {changed} of {name}")
    assigned = json.loads(new["metadata"]["annotations"][names.ANNOTATION_ASSIGNMENT])
    memory.must(assigned[contract.NODE_RANK] == labels[names.LABEL_RANK], f"{name} is {labels} and gets {assigned}")
    job = world.server.by_uid(JOBS, owner_uid(new))
    if job is None:
        return
    attempt, rank, replacement = place
    memory.of(job).created[place] += 1
    memory.counts["spare pod took over"] += 1
    status = job.get("status") or {}
    current = attempt == status.get("attempt", 1) and replacement == replacement_of(status, rank)
    if not current:
        mark_straggler(memory, new["metadata"]["uid"])
        memory.must(
            not memory.is_alone(by), f"{name} becomes the pod of {place} by {by}, which the status does not name"
        )
        return
    named = [(pod["rank"], pod.get("spare")) for pod in status.get("replacedPods", ())]
    memory.must(named.count((rank, name)) == 1, f"{name} becomes the pod of rank {rank}, and the status names {named}")
    memory.must([spare for _, spare in named].count(name) == 1, f"{name} is named for several ranks: {named}")
    memory.must(memory.of(job).created[place] == 1, f"{name} becomes a second pod of {place}")
    sandbox = world.cluster.sandboxes.get(new["metadata"]["uid"])
    ready = sandbox is not None and sandbox.has_started
    memory.must(ready, f"{name} becomes the pod of rank {rank} before it waits")
    if memory.is_alone(by):
        memory.must(memory.of(job).end is None, f"{name} becomes the pod of rank {rank} after the end of the job")
        check_nothing_before_it_runs(memory, new, job)
