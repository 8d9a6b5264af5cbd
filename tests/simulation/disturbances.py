"""Everything that can happen to a job from outside, by the name that schedules use.

Each takes the world and a number that chooses among what it can be done to; where there is nothing, nothing happens.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from simulation import user_actions
from simulation.api_client import FAULTS, changes_until
from simulation.api_server import JOBS, NODES, POD_GROUPS, PODS, Body, owner_uid
from simulation.nodes import Sandbox
from simulation.schedule import DISTURBANCES, FOCUSES, Step
from simulation.world import FIRST, SECOND, World

T = TypeVar("T")
Disturbance = Callable[[World, int], None]

CLOCK_JUMPS_SECONDS = (-3600.0, -300.0, -30.0, -2.0, 2.0, 30.0, 300.0, 3600.0)
FREEZES_SECONDS = (0.5, 3.0, 15.0, 60.0, 250.0)


# --- The operator and its connections ---------------------------------------------------------------------------------


def crash(world: World, pick: int) -> None:
    """The operator dies at one of its next calls: before it, or with the answer unread."""
    process = world.operators.get(FIRST)
    if process is not None:
        process.calls_to_death = pick // 2 % 16
        process.dies_with_answer_unread = bool(pick % 2)


def faults(world: World, pick: int) -> None:
    """Some of the next requests fail."""
    for process in world.operators.values():
        fault = FAULTS[pick % len(FAULTS)]
        process.faults = [fault] * (1 + pick // len(FAULTS) % 4)


def second_operator(world: World, pick: int) -> None:
    """A second operator starts, and soon its view is old or its requests are slow."""
    seconds = FREEZES_SECONDS[pick // 4 % len(FREEZES_SECONDS)]
    world.start_operator(SECOND)
    match pick % 4:
        case 0:
            world.later(0.5, _freeze_jobs, world, seconds)
        case 1:
            world.operators[SECOND].go_blind_at_next_attempt(seconds)
        case _:
            world.operators[SECOND].slow_creations = 8


def _freeze_jobs(world: World, seconds: float) -> None:
    if SECOND in world.operators:
        for stream in world.operators[SECOND].client.streams:
            if stream.plural == JOBS:
                stream.freeze(seconds)


def freeze_watches(world: World, pick: int) -> None:
    """Watch events arrive late."""
    for process in world.operators.values():
        for number, stream in enumerate(process.client.streams):
            if pick % 4 in (3, number):
                stream.freeze(FREEZES_SECONDS[pick // 4 % len(FREEZES_SECONDS)])


def cut_watches(world: World, pick: int) -> None:
    """Connections break, and are opened again."""
    for process in world.operators.values():
        for number, stream in enumerate(process.client.streams):
            if pick % 4 in (3, number):
                stream.cut()


def forget_history(world: World, pick: int) -> None:
    """Compaction while connections are broken: 410."""
    cut_watches(world, pick)
    world.server.forget_history()


def lose_delete(world: World, pick: int) -> None:
    """The watch event of a deletion is lost."""
    for process in world.operators.values():
        for number, stream in enumerate(process.client.streams):
            if pick % 4 in (3, number):
                stream.lose_next_delete()


def outage(world: World, pick: int) -> None:
    """The API server cannot be reached for a while, and has forgotten its history when it is back."""
    _cut_off(world, FREEZES_SECONDS[pick % len(FREEZES_SECONDS)])


def _cut_off(world: World, seconds: float) -> None:
    for process in world.operators.values():
        process.cut_off_until = world.now() + seconds
        for stream in process.client.streams:
            stream.cut()
    world.later(seconds - 0.01, world.server.forget_history)


def repeat_events(world: World, pick: int) -> None:
    """Old events come again for a while, after newer ones."""
    for seconds in (0.0, 0.7, 1.4, 2.8):
        world.later(seconds, _repeat_event, world, pick)


def _repeat_event(world: World, pick: int) -> None:
    """Two old events of each stream come again; the server sends no events of an object that is gone."""
    for process in world.operators.values():
        for stream in process.client.streams:
            alive = {body["metadata"]["uid"] for body in world.server.all(stream.plural)}
            past = changes_until(world.server, stream.plural, world.server.version)
            old = [change for change in past if change.body["metadata"]["uid"] in alive]
            for change in old[-2 - pick // 8 : -1][:2]:
                stream.repeat(change)


def jump_clock(world: World, pick: int) -> None:
    """The operator's wall clock is set."""
    world.jump_clock(_one_of(CLOCK_JUMPS_SECONDS, pick))


# --- Nodes ------------------------------------------------------------------------------------------------------------


def lose_node(world: World, pick: int) -> None:
    """A kubelet dies; containers on the node keep running."""
    world.cluster.stop_kubelet(_one_of(list(world.cluster.nodes.values()), pick))
    world.counts["node lost"] += 1


def node_comes_back(world: World, pick: int) -> None:
    """One of the dead kubelets starts again."""
    if dead := [node for node in world.cluster.nodes.values() if not node.kubelet_up]:
        world.cluster.start_kubelet(_one_of(dead, pick))


def remove_node(world: World, pick: int) -> None:
    """An administrator removes a node that is lost for good; it is switched off."""
    lost = [node for node in world.cluster.nodes.values() if not node.ready]
    shown = world.server.find(NODES, _one_of(lost, pick).name) if lost else None
    if shown is not None:
        world.server.remove(NODES, shown["metadata"]["uid"], "user")


def restart_kubelet(world: World, pick: int) -> None:
    """A kubelet is away for a moment, too short to be noticed."""
    node = _one_of(list(world.cluster.nodes.values()), pick)
    if node.kubelet_up:
        world.cluster.stop_kubelet(node)
        world.later(3.0, world.cluster.start_kubelet, node)


def fill_nodes(world: World, pick: int) -> None:
    """Pods of others fill the nodes."""
    for node in list(world.cluster.nodes.values())[: 1 + pick % 4]:
        node.places = 0


# --- Pods -------------------------------------------------------------------------------------------------------------


def delete_group(world: World, pick: int) -> None:
    """Somebody deletes a PodGroup."""
    _delete(world, POD_GROUPS, world.server.all(POD_GROUPS), pick)


def delete_pod(world: World, pick: int) -> None:
    """Somebody deletes a pod of the job."""
    _delete(world, PODS, _pods(world), pick)


def force_delete_pod(world: World, pick: int) -> None:
    """Somebody deletes a pod by force: the object is removed at once, the containers run for another moment."""
    if pods := _pods(world):
        metadata = _one_of(pods, pick)["metadata"]
        world.memory.forced.add(metadata["uid"])
        world.server.delete(PODS, metadata["name"], uid=None, grace_seconds=0, by="user")


def evict_pod(world: World, pick: int) -> None:
    """A drain, or a preemption."""
    if pods := _pods(world):
        reason = ("EvictionByEvictionAPI", "PreemptionByScheduler")[pick % 2]
        world.cluster.disrupt(_one_of(pods, pick // 2), reason, "the node is drained")


def evict_for_memory(world: World, pick: int) -> None:
    """A kubelet ends a pod because its node runs out of memory."""
    if running := _running(world):
        world.cluster.evict_for_memory(_one_of(running, pick))


def kill_rank(world: World, pick: int) -> None:
    """A rank's main process dies of SIGKILL."""
    if running := _running(world):
        world.programs.end(_one_of(running, pick).main, 137)


def restart_ranks(world: World, pick: int) -> None:
    """A rank fails within its pod, which starts it again together with all others."""
    if gangs := list(world.programs.gangs.values()):
        world.programs.restart_in_place(_one_of(gangs[-2:], pick))


def kill_two_ranks(world: World, pick: int) -> None:
    """Two ranks die at the same moment, and the operator sees their ends in one list."""
    _cut_off(world, 3.0)
    ranks = _running(world)
    first = pick % max(1, len(ranks))
    for sandbox in (ranks + ranks)[first : first + min(2, len(ranks))]:
        world.programs.end(sandbox.main, 137)


def exit_rank(world: World, pick: int) -> None:
    """A rank's main process ends by itself."""
    if running := _running(world):
        world.programs.end(_one_of(running, pick // 4).main, (0, 1, 2, 75)[pick % 4], "by itself")


def replace_job_while_deleting(world: World, pick: int) -> None:
    """The same while a deletion of the operator's is still on its way to a slow API server."""
    for process in world.operators.values():
        process.late_deletions = 2
    kill_rank(world, pick)
    world.later(3.0, user_actions.replace_job, world, pick)


#: After these an operator's view may be old, or its requests late.
_OF_THE_VIEW = frozenset(
    {
        "faults",
        "freeze_watches",
        "cut_watches",
        "forget_history",
        "outage",
        "lose_delete",
        "repeat_events",
        "second_operator",
        "replace_job_while_deleting",
        "kill_two_ranks",
    }
)


def disturb(world: World, step: Step) -> None:
    """Do one step of a schedule."""
    if step.do in _OF_THE_VIEW:
        world.memory.view_disturbed_at = world.now()
    _BY_NAME[step.do](world, step.pick)
    world.counts[step.do] += 1


def _pods(world: World) -> list[Body]:
    return [pod for pod in world.server.all(PODS) if owner_uid(pod)]


def _running(world: World) -> list[Sandbox]:
    return [
        s for s in world.cluster.sandboxes.values() if s.main.exit is None and world.cluster.nodes[s.node].kubelet_up
    ]


def _delete(world: World, kind: str, bodies: Sequence[Body], pick: int) -> None:
    """Somebody deletes one of these, if there is one."""
    if bodies:
        name = _one_of(bodies, pick)["metadata"]["name"]
        world.server.delete(kind, name, uid=None, grace_seconds=None, by="user")


def _one_of(items: Sequence[T], pick: int) -> T:
    return items[pick % len(items)]


def _sets(part: str, attribute: str, value: Callable[[int], Any]) -> Disturbance:
    """Set an attribute of the server or the cluster to a value that may depend on the pick."""
    return lambda world, pick: setattr(getattr(world, part), attribute, value(pick))


#: What needs no function of its own.
_SHORT: dict[str, Disturbance] = {
    "stop_second_operator": lambda world, _: world.stop_operator(SECOND),
    "free_nodes": lambda world, _: world.free_nodes(),
    "suspend": lambda world, _: world.patch_spec({"suspend": True}),
    "resume": lambda world, _: world.patch_spec({"suspend": False}),
    "remove_stranger": lambda world, _: world.remove_strangers(),
    "delete_job": lambda world, _: world.delete_job(),
    "exceed_quota": _sets("server", "pod_quota", lambda pick: pick % 4),
    "raise_quota": _sets("server", "pod_quota", lambda _: None),
    "break_webhook": _sets("server", "webhook_is_broken", lambda _: True),
    "repair_webhook": _sets("server", "webhook_is_broken", lambda _: False),
    "lose_image": _sets("cluster", "image_is_missing", lambda _: True),
    "find_image": _sets("cluster", "image_is_missing", lambda _: False),
    "refuse_pods": _sets("cluster", "refuses_pods", lambda _: True),
    "admit_pods": _sets("cluster", "refuses_pods", lambda _: False),
}
_BY_NAME: dict[str, Disturbance] = {
    name: _SHORT.get(name) or globals().get(name) or getattr(user_actions, name)
    for names_ in (DISTURBANCES, *FOCUSES.values())
    for name in names_
}
