"""The cluster's own parts: scheduler, kubelets, node controller, garbage collector. They know which programs truly run.

Times are in seconds, as measured on real nodes: a terminated container shows about a second before its pod's phase, the
kubelet gives two seconds of grace at least, and a node that is lost is noticed after its grace while its containers run on.
"""

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ddpjob_operator.api import names
from ddpjob_operator.core.times import rfc3339
from simulation.api_server import (
    DEFAULT_GRACE_SECONDS,
    JOBS,
    NODES,
    POD_GROUPS,
    PODS,
    SERVICES,
    ApiServer,
    Body,
    group_of,
    is_over,
    owner_uid,
)
from simulation.containers import Container, container_of
from simulation.program import Programs

LEAST_GRACE_SECONDS = 2.0
PHASE_LAG_SECONDS = 1.1
NODE_MONITOR_SECONDS = 40.0
TOLERATION_SECONDS = 30.0
PULL_RETRY_SECONDS = 10.0


@dataclass(slots=True, kw_only=True)
class Node:
    """A machine. What runs on it runs on while its kubelet is dead."""

    name: str
    places: int
    """How many pods fit."""
    kubelet_up: bool = True
    ready: bool = True
    """What the API server shows."""
    back_at: float = 0.0
    """When it last became Ready again, on the loop's clock."""


@dataclass(slots=True, kw_only=True)
class Sandbox:
    """A pod on a node: what truly runs, whatever the API server shows."""

    uid: str
    name: str
    node: str
    main: Container
    sidecar_runs: bool
    own_grace_seconds: float
    kill_timer: asyncio.TimerHandle | None = None
    kill_at: float = 0.0
    over_deadline: bool = False
    phase_due: bool = False
    evicted: bool = False

    @property
    def runs(self) -> bool:
        """Whether any of its containers runs."""
        return self.main.exit is None or self.sidecar_runs


@dataclass(slots=True, kw_only=True)
class Cluster:
    """All nodes and what they do. Sees the API server's changes a moment later, as its parts do."""

    server: ApiServer
    programs: Programs
    random: Random
    nodes: dict[str, Node]
    image_is_missing: bool = False
    refuses_pods: bool = False
    """Whether kubelets end each pod that is new to them, for example because a device is broken."""
    sandboxes: dict[str, Sandbox] = field(default_factory=dict)
    _unscheduled: list[str] = field(default_factory=list)
    num_nodes_lost: int = 0

    def __post_init__(self) -> None:
        """Join the cluster."""
        self.server.observers.append(self)
        self.programs.ended = self._main_has_ended
        for node in self.nodes.values():
            self.server.create(NODES, _node_body(node), "kubelet")

    # --- What the parts see ------------------------------------------------------------------------------------------

    def on_change(self, plural: str, old: Body | None, new: Body | None, by: str) -> None:
        """React, each part after its own lag."""
        if plural in (PODS, SERVICES, POD_GROUPS) and old is None and new is not None:
            self._collect_without_owner(new)
        if plural == PODS:
            self._pod_changed(old, new, by)
        elif plural == POD_GROUPS:
            self._later(self.random.choice((0.01, 0.1)), self.look_for_places)
        elif plural == SERVICES:
            self._later(0.1, self.programs.look_for_the_master)
        elif plural == JOBS and new is None and old is not None:
            self._later(self.random.choice((0.1, 2.0)), self._collect, old["metadata"]["uid"])

    def _pod_changed(self, old: Body | None, new: Body | None, by: str) -> None:
        if (body := new or old) and group_of(body) and (new is None or is_over(new)):
            self._later(0.1, self._remove_groups)
        if new is None:
            assert old is not None
            uid = old["metadata"]["uid"]
            self._later(0.05, self._sync, uid)
            self._later(0.2, self.look_for_places)
        elif old is None:
            uid = new["metadata"]["uid"]
            self._unscheduled.append(uid)
            self._later(self.random.choice((0.01, 0.1, 1.0)), self.look_for_places)
        elif by != "kubelet":
            self._later(self.random.choice((0.02, 0.3)), self._sync, new["metadata"]["uid"])

    def _collect_without_owner(self, child: Body) -> None:
        """The garbage collector: a child that was created after its owner had gone."""
        owner = owner_uid(child)
        if owner and self.server.by_uid(JOBS, owner) is None:
            self._later(2.0, self._collect, owner)

    def _collect(self, owner: str) -> None:
        """The garbage collector: children of an owner that is gone."""
        for plural in (PODS, SERVICES, POD_GROUPS):
            for body in self.server.all(plural):
                if owner_uid(body) == owner:
                    name, uid = body["metadata"]["name"], body["metadata"]["uid"]
                    self.server.delete(plural, name, uid=uid, grace_seconds=None, by="garbage collector")

    def _remove_groups(self) -> None:
        """The controller that protects PodGroups: those that somebody has deleted go after their pods."""
        for group in self.server.all(POD_GROUPS):
            if "deletionTimestamp" in group["metadata"] and not self.server.members(group["metadata"]["name"]):
                self.server.remove(POD_GROUPS, group["metadata"]["uid"], "controller")

    # --- Scheduler ---------------------------------------------------------------------------------------------------

    def look_for_places(self) -> None:
        """Give every pod without a node one on which it fits, those of a group only if all have one."""
        for uid in list(self._unscheduled):
            pod = self.server.by_uid(PODS, uid)
            if pod is None or "nodeName" in pod["spec"]:
                self._unscheduled.remove(uid)
                continue
            num_needed = self._num_needed(pod)
            if num_needed is None:
                continue  # the scheduler says nothing of it
            node = self._place(num_needed)
            if node is not None:
                self._unscheduled.remove(uid)
                self._bind(pod, node)
            elif not pod.get("status", {}).get("conditions"):
                message = f"0/{len(self.nodes)} nodes are available: {len(self.nodes)} Insufficient nvidia.com/gpu."
                refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
                self.server.update(PODS, uid, {"status": {"phase": "Pending", "conditions": [refused]}}, "scheduler")

    def _num_needed(self, pod: Body) -> int | None:
        """How many places must be free for this pod; None for one of a group that is not there yet, or not whole.

        As `PreEnqueue` and `Permit` of Kubernetes 1.36's plugin gangscheduling: pods with a node count.
        """
        if not (name := group_of(pod)):
            return 1
        group, members = self.server.find(POD_GROUPS, name), self.server.members(name)
        num_wanted = group["spec"]["schedulingPolicy"]["gang"]["minCount"] if group else len(members) + 1
        num_placed = sum("nodeName" in member["spec"] for member in members)
        return max(1, num_wanted - num_placed) if len(members) >= num_wanted else None

    def _place(self, num_needed: int) -> Node | None:
        used = [pod["spec"].get("nodeName") for pod in self.server.all(PODS) if not is_over(pod)]
        free = [node for node in self.nodes.values() if node.ready and used.count(node.name) < node.places]
        if sum(node.places - used.count(node.name) for node in free) < num_needed:
            return None
        return min(free, key=lambda node: used.count(node.name), default=None)

    def _bind(self, pod: Body, node: Node) -> None:
        uid = pod["metadata"]["uid"]
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339(self.server.now)}
        parts = {
            "spec": {**pod["spec"], "nodeName": node.name},
            "status": {"phase": "Pending", "conditions": [scheduled]},
        }
        self.server.update(PODS, uid, parts, "scheduler")

    # --- Kubelet ----------------------------------------------------------------------------------------------------

    def _sync(self, uid: str) -> None:
        """A kubelet makes one pod's containers and its status what they should be."""
        pod = self.server.by_uid(PODS, uid)
        sandbox = self.sandboxes.get(uid)
        node_name = sandbox.node if sandbox else (pod["spec"].get("nodeName") if pod else None)
        node = self.nodes.get(node_name or "")
        if node is None or not node.kubelet_up:
            return  # it looks at everything once it is back
        if pod is None:
            if sandbox is not None and sandbox.runs:
                self._terminate(sandbox, LEAST_GRACE_SECONDS)
            return
        if sandbox is None:
            self._start(pod, node)
            return
        deletion_grace = pod["metadata"].get("deletionGracePeriodSeconds")
        if sandbox.runs and deletion_grace is not None:
            self._terminate(sandbox, max(LEAST_GRACE_SECONDS, deletion_grace))
        elif sandbox.runs and pod["spec"].get("activeDeadlineSeconds") == 1:
            sandbox.over_deadline = True
            self._terminate(sandbox, sandbox.own_grace_seconds)
        self._report(pod, sandbox)

    def _start(self, pod: Body, node: Node) -> None:
        metadata, status = pod["metadata"], pod["status"]
        uid = metadata["uid"]
        if "deletionTimestamp" in metadata:
            self.server.remove(PODS, uid, "kubelet")
            return
        if is_over(pod):
            return
        if self.refuses_pods:  # the scheduler's condition is lost
            refused = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy device"}
            refused["startTime"] = rfc3339(self.server.now)
            self.server.update(PODS, uid, {"status": refused}, "kubelet")
            return
        if names.LABEL_PLACEHOLDER in metadata["labels"]:
            self.server.update(PODS, uid, {"status": {**status, "phase": "Running"}}, "kubelet")
            return
        if self.image_is_missing:
            waiting = {"waiting": {"reason": "ErrImagePull", "message": "image trainer:1 not found"}}
            container = {"name": names.MAIN_CONTAINER, "state": waiting}
            self.server.update(PODS, uid, {"status": {**status, "containerStatuses": [container]}}, "kubelet")
            self._later(PULL_RETRY_SECONDS, self._sync, uid)
            return
        sandbox = Sandbox(
            uid=uid,
            name=metadata["name"],
            node=node.name,
            main=container_of(pod),
            sidecar_runs=len(pod["spec"]["containers"]) > 1,
            own_grace_seconds=float(pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS)),
        )
        self.sandboxes[uid] = sandbox
        self.programs.start(sandbox.main)
        self._report(pod, sandbox)

    def _report(self, pod: Body, sandbox: Sandbox) -> None:
        """Say what runs; a pod's phase follows its last container by a second, and a deleted pod's object goes then."""
        status = dict(pod["status"])
        status["containerStatuses"] = _container_statuses(pod, sandbox)
        if sandbox.runs:
            status["phase"] = "Running"
        elif not sandbox.phase_due:
            self._later(PHASE_LAG_SECONDS, self._phase_is_due, sandbox)
        else:
            assert sandbox.main.exit is not None
            status["phase"] = "Failed" if sandbox.main.exit.code or sandbox.over_deadline else "Succeeded"
            if sandbox.over_deadline:
                status["reason"] = "DeadlineExceeded"
            if sandbox.evicted:
                status |= {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
            if "deletionTimestamp" in pod["metadata"]:
                self.server.update(PODS, sandbox.uid, {"status": status}, "kubelet")
                self.server.remove(PODS, sandbox.uid, "kubelet")
                return
        self.server.update(PODS, sandbox.uid, {"status": status}, "kubelet")
        if status["phase"] in ("Failed", "Succeeded"):
            self._later(0.2, self.look_for_places)

    def _phase_is_due(self, sandbox: Sandbox) -> None:
        sandbox.phase_due = True
        self._sync(sandbox.uid)

    def _terminate(self, sandbox: Sandbox, grace_seconds: float) -> None:
        """SIGTERM now, SIGKILL after the grace; a second request can only shorten it."""
        kill_at = self._now() + grace_seconds
        if sandbox.kill_timer is not None:
            if sandbox.kill_at <= kill_at:
                return
            sandbox.kill_timer.cancel()
        else:
            self.programs.sigterm(sandbox.main, grace_seconds)
        sandbox.kill_at = kill_at
        sandbox.kill_timer = asyncio.get_running_loop().call_at(kill_at, self._kill, sandbox)
        if sandbox.sidecar_runs:
            self._later(min(1.0, grace_seconds), self._sidecar_ends, sandbox)

    def _kill(self, sandbox: Sandbox) -> None:
        if not self.nodes[sandbox.node].kubelet_up:
            sandbox.kill_timer = None  # the kubelet starts the grace period again when it is back
            return
        sandbox.sidecar_runs = False
        self.programs.end(sandbox.main, 137)

    def _sidecar_ends(self, sandbox: Sandbox) -> None:
        sandbox.sidecar_runs = False
        self._sync(sandbox.uid)

    def _main_has_ended(self, container: Container) -> None:
        self._later(self.random.choice((0.1, 0.4, 0.8)), self._sync, container.uid)

    # --- What happens to nodes and pods ------------------------------------------------------------------------------

    def evict_for_memory(self, sandbox: Sandbox) -> None:
        """The kubelet ends a pod and keeps its object."""
        sandbox.evicted = True
        self._terminate(sandbox, LEAST_GRACE_SECONDS)

    def stop_kubelet(self, node: Node) -> None:
        """The node is lost: noticed late, and its pods marked later."""
        if node.kubelet_up:
            node.kubelet_up = False
            self.num_nodes_lost += 1
            self._later(NODE_MONITOR_SECONDS, self._notice, node, self.num_nodes_lost)

    def start_kubelet(self, node: Node) -> None:
        """The node is back, with everything that still runs on it."""
        if node.kubelet_up:
            return
        node.kubelet_up = True
        if not node.ready:
            node.ready, node.back_at = True, self._now()
        self._show(node)
        for pod in self.server.all(PODS):
            if pod["spec"].get("nodeName") == node.name:
                self._later(0.5, self._sync, pod["metadata"]["uid"])
        for sandbox in self.sandboxes.values():
            if sandbox.node == node.name:
                self._later(1.0, self._sync, sandbox.uid)
        self._later(1.0, self.look_for_places)

    def restore_nodes(self) -> None:
        """Nodes that were removed come back, empty: their machines were switched off."""
        for node in self.nodes.values():
            if self.server.find(NODES, node.name) is None:
                self.server.create(NODES, _node_body(node), "kubelet")

    def _notice(self, node: Node, lost: int) -> None:
        if node.kubelet_up or not node.ready or lost > self.num_nodes_lost:
            return
        node.ready = False
        self._show(node)
        self._later(TOLERATION_SECONDS, self._take_pods_away, node)

    def _take_pods_away(self, node: Node) -> None:
        """The node controller marks the pods of a lost node; nobody there can end them."""
        if node.ready:
            return
        for pod in self.server.all(PODS):
            if pod["spec"].get("nodeName") == node.name and not is_over(pod):
                self.disrupt(pod, "DeletionByTaintManager", "the node is unreachable")

    def disrupt(self, pod: Body, reason: str, message: str) -> None:
        """Eviction, preemption, drain: a condition, then a deletion with the pod's own grace."""
        uid, status = pod["metadata"]["uid"], pod.get("status") or {}
        target = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        conditions = [*(status.get("conditions") or []), target]
        self.server.update(PODS, uid, {"status": {**status, "conditions": conditions}}, "cluster")
        self.server.delete(PODS, pod["metadata"]["name"], uid=uid, grace_seconds=None, by="cluster")

    def _show(self, node: Node) -> None:
        shown = self.server.find(NODES, node.name)
        if shown is not None:
            self.server.update(NODES, shown["metadata"]["uid"], {"status": _node_body(node)["status"]}, "kubelet")

    def _later(self, seconds: float, call: Any, *arguments: Any) -> None:
        asyncio.get_running_loop().call_later(seconds, call, *arguments)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _node_body(node: Node) -> Body:
    ready = {"type": "Ready", "status": "True" if node.ready else "Unknown"}
    return {"metadata": {"name": node.name}, "spec": {}, "status": {"conditions": [ready]}}


def _container_statuses(pod: Body, sandbox: Sandbox) -> list[Body]:
    """As the kubelet writes them."""
    main_exit = sandbox.main.exit
    state: Body = {"running": {}}
    if main_exit is not None:
        reason = main_exit.reason or ("Error" if main_exit.code else "Completed")
        ended = {"exitCode": main_exit.code, "reason": reason, "message": main_exit.message}
        state = {"terminated": {**ended, "finishedAt": main_exit.finished_at}}
    statuses: list[Body] = [{"name": names.MAIN_CONTAINER, "state": state}]
    for container in pod["spec"]["containers"]:
        if container["name"] != names.MAIN_CONTAINER:
            side = {"running": {}} if sandbox.sidecar_runs else {"terminated": {"exitCode": 0, "reason": "Completed"}}
            statuses.append({"name": container["name"], "state": side})
    return statuses
