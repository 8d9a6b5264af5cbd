"""How each fault is caused from outside the job, and how the cluster is repaired after it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import testbed
from chaos.laboratory import LABEL_JOB, NAMESPACE
from chaos.matrix import NUM_RANKS, Fault
from chaos.target import RECOVERY_SECONDS, Target
from ddpjob_operator.core.failure.restart import SHORT_SECONDS
from support.helm_release import SYSTEM_NAMESPACE
from testbed import tools
from testbed.kubectl import KubectlError

#: How long CoreDNS is away.
DNS_OUTAGE_SECONDS = 8


def _nothing(_: Target) -> None:
    """Nothing needs a repair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """A fault in practice.

    Attributes:
        inject: causes it; returns at once or when it is over.
        repair: called next; waits for the expected effect and ends the fault.
        hold_seconds: how long rank 0 stays in the phase after the fault, so that the fault's effect still meets it there.
        later_step_seconds: how long rank 0 takes in addition for each step after it has started again in place.
        spec: fields of the job's spec in addition to the usual ones.
        pod_spec: the same for its pods.
    """

    inject: Callable[[Target], None]
    repair: Callable[[Target], None] = _nothing
    hold_seconds: float = 4
    later_step_seconds: float = 0
    spec: Mapping[str, Any] = field(default_factory=dict)
    pod_spec: Mapping[str, Any] = field(default_factory=dict)


def _delete(target: Target, *arguments: str) -> None:
    target.kubectl("delete", "pod", target.pod(1), "--wait=false", *arguments)


def _evict(target: Target) -> None:
    name = target.pod(1)
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": NAMESPACE},
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
    target.laboratory.cluster.kubectl("create", f"--raw={path}", "--filename=-", stdin=json.dumps(eviction))


def _delete_service(target: Target) -> None:
    before = target.laboratory.service(target.name)
    assert before is not None, "a job whose pods exist has its Service"
    target.kubectl("delete", "service", f"{target.name}-master", "--wait=false")

    def back() -> bool:
        now = target.laboratory.service(target.name)
        return now is not None and now["metadata"]["uid"] != before["metadata"]["uid"]

    testbed.wait_for(f"the Service of {target.name} to be there again", back, seconds=60)


def _suspend(target: Target) -> None:
    target.laboratory.patch(target.name, {"suspend": True})


def _resume(target: Target) -> None:
    """Go on once nothing of the job is left; the time until it trains counts from then on."""
    what = f"{target.name} to be suspended without pods"
    testbed.wait_for(what, lambda: target.look().phase == "Suspended" and not target.runs(), seconds=60)
    target.fault_at = time.time()
    target.laboratory.patch(target.name, {"suspend": False})


def _edit(target: Target) -> None:
    """An edit of the program, which the API server must refuse, and one of the policies, which must disturb nothing."""
    refusal = _refusal(target, {"trainer": {"epochs": 5}})
    expected = "can change only while the job is suspended"
    assert expected in refusal, f"a running job's program was edited; expected {expected!r}, found {refusal!r}"
    target.laboratory.patch(target.name, {"restart": {"maxRestarts": 0}, "deadlines": {"activeSeconds": 3600}})


def _refusal(target: Target, spec: dict[str, Any]) -> str:
    """What the API server says against an edit; nothing if it takes it."""
    try:
        target.laboratory.patch(target.name, spec)
    except KubectlError as refused:
        return str(refused)
    return ""


def _scale(target: Target, *, num_nodes: int) -> None:
    target.kubectl("scale", "ddpjob", target.name, f"--replicas={num_nodes}")


def _lose_node(target: Target) -> None:
    target.node().kill_kubelet()


def _find_node(target: Target) -> None:
    """The kubelet comes back when the job trains elsewhere; ranks that ran on without it must go."""
    target.wait_met_again()
    target.laboratory.repair()


def _drain(target: Target) -> None:
    options = ["--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s"]
    node, kubeconfig = target.node().name, target.laboratory.cluster.kubeconfig
    command = [str(tools.path("kubectl")), f"--kubeconfig={kubeconfig}", "drain", node, *options]
    # It returns when the pods are gone; the job starts again meanwhile.
    target.drain = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    testbed.wait_for(f"{node} to be cordoned", lambda: _cordoned(target, node), seconds=30)


def _cordoned(target: Target, node: str) -> bool:
    return any(
        body["metadata"]["name"] == node and body["spec"].get("unschedulable") for body in target.laboratory.nodes()
    )


def _end_drain(target: Target) -> None:
    assert target.drain is not None, "a drain runs"
    _, printed = target.drain.communicate(timeout=150)
    assert target.drain.returncode == 0, f"kubectl drain failed: {printed}"
    target.wait_met_again()
    target.laboratory.repair()


def _kill_operators(target: Target) -> None:
    for pod in target.laboratory.operators():
        target.laboratory.kill_operator(pod["metadata"]["name"])


def _kill_leader(target: Target) -> None:
    """As if its machine had failed: the pod goes with the process, else the same pod would be back within a second."""
    leader = testbed.wait_for("an operator to hold the Lease", target.laboratory.leader, seconds=60)
    target.laboratory.kill_operator(leader)
    target.laboratory.remove_operators(leader, options=("--grace-period=0", "--force"))


def _wait_takeover(target: Target) -> None:
    """Until somebody leads again and all operators are ready."""
    if before := target.laboratory.lease():
        testbed.wait_for(
            "the operator's Lease to be renewed",
            lambda: (target.laboratory.lease() or before)["renewTime"] != before["renewTime"],
            seconds=60,
        )
    target.laboratory.wait_operators()


def _restart_api_server(target: Target) -> None:
    server = target.laboratory.cluster.control_plane.components["kube-apiserver"]
    server.kill()
    server.start()


def _stop_dns(target: Target) -> None:
    target.laboratory.cluster.control_plane.components["coredns"].kill()


def _start_dns(target: Target) -> None:
    time.sleep(DNS_OUTAGE_SECONDS)  # the length of the outage, nothing is waited for
    target.laboratory.cluster.control_plane.components["coredns"].start()


def _exit_both(target: Target) -> None:
    for process in [target.process(rank) for rank in (0, 1)]:
        with suppress(ProcessLookupError):  # on a busy machine, the end of the first has ended the second already
            os.kill(process, signal.SIGUSR1)


def _kill_in_restart(target: Target) -> None:
    """A rank is killed, and the other one while both start again."""
    first, launcher, began = target.process(0), target.main_process(1), time.time()
    os.kill(first, signal.SIGKILL)

    def runs_again() -> bool:
        return target.marks()[1, 0].first("python", since=began) is not None

    testbed.wait_for(f"the next rank 0 of {target.name} to run", runs_again, seconds=60, every_seconds=0.01)

    def killed() -> bool:
        with suppress(OSError):  # at this moment no process of rank 1 is there
            os.kill(testbed.child_named(launcher, "rank 1"), signal.SIGKILL)
            return True
        return False

    testbed.wait_for(f"rank 1 of {target.name} to be killed", killed, seconds=60, every_seconds=0.01)


def _kill_replacement(target: Target) -> None:
    """The pod that replaces one that was lost is lost, too, as soon as it runs."""
    cluster, name = target.laboratory.cluster, f"{target.pod(1)}-r1"
    os.kill(target.main_process(1), signal.SIGKILL)

    def killed() -> bool:
        if target.look().attempt > 1 or target.finished:  # the gang starts again instead
            return True
        with suppress(KubectlError, OSError, KeyError):  # it is not there yet, or does not run yet
            os.kill(cluster.container_pid(NAMESPACE, name, "trainer"), signal.SIGKILL)
            return True
        return False

    testbed.wait_for(f"{name} to be killed", killed, seconds=RECOVERY_SECONDS, every_seconds=0.1)


def _kill_replacement_later(target: Target) -> None:
    """The pod that replaces one that was lost is lost, too, when it has trained for more than 10 s and the status shows steps of it."""
    lost_at, step_before = time.time(), target.marks()[1, 0].step_done() or 0
    os.kill(target.main_process(1), signal.SIGKILL)

    def is_healthy() -> bool:
        begun = target.marks()[1, 0].first("begin", since=lost_at)
        shown = target.look().status.get("progress", {}).get("step", 0)
        return begun is not None and time.time() > begun + SHORT_SECONDS + 1 and shown > step_before

    def over() -> bool:
        return is_healthy() or target.attempt > 1 or target.finished

    testbed.wait_for(f"{target.name} to train with a new pod", over, seconds=RECOVERY_SECONDS, every_seconds=0.1)
    assert is_healthy(), f"{target.name} was to train with a new pod of rank 1, and is {target.seen[-1]}"
    replacement = target.laboratory.cluster.container_pid(NAMESPACE, f"{target.pod(1)}-r1", "trainer")
    target.fault_at = time.time()
    os.kill(replacement, signal.SIGKILL)


def _kill_without_operators(target: Target) -> None:
    """A rank is killed while no operator runs; the operators continue once training does."""
    cluster, began = target.laboratory.cluster, time.time()
    names = [pod["metadata"]["name"] for pod in target.laboratory.operators()]
    operators = [cluster.container_pid(SYSTEM_NAMESPACE, name, "operator") for name in names]
    for operator in operators:
        os.kill(operator, signal.SIGSTOP)
    try:
        target.signal(1, signal.SIGKILL)
        target.wait_begun_again(began)
    finally:
        for operator in operators:
            with suppress(ProcessLookupError):  # the kubelet has started it again
                os.kill(operator, signal.SIGCONT)


def _kill_without_api_server(target: Target) -> None:
    """A rank is killed while the API server is down; it starts again once training does."""
    server, began = target.laboratory.cluster.control_plane.components["kube-apiserver"], time.time()
    process = target.process(1)
    server.kill()
    try:
        os.kill(process, signal.SIGKILL)
        target.wait_begun_again(began)
    finally:
        server.start()


#: A pod leaves a silent node after 5 s and gets 5 s to end.
IMPATIENT = {
    "terminationGracePeriodSeconds": 5,
    "tolerations": [
        {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
        for taint in ("not-ready", "unreachable")
    ],
}
_NO_SHARED_NODE = {
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "topologyKey": "kubernetes.io/hostname",
                    # Of no other job: the fault runs alone.
                    "labelSelector": {"matchExpressions": [{"key": LABEL_JOB, "operator": "Exists"}]},
                }
            ]
        }
    }
}

INJECTIONS: Mapping[Fault, Injection] = {
    Fault.EXIT: Injection(inject=lambda target: target.signal(1, signal.SIGUSR1)),
    Fault.KILL: Injection(inject=lambda target: target.signal(0, signal.SIGKILL)),
    Fault.OUT_OF_MEMORY: Injection(inject=lambda target: target.signal(1, signal.SIGUSR2)),
    Fault.STOP: Injection(
        inject=lambda target: target.signal(1, signal.SIGSTOP),
        # Before its first progress line a job hangs only when it has had the time to start, too.
        spec={"deadlines": {"hangSeconds": 15, "startSeconds": 45}},
        # A stopped process never hears of SIGTERM.
        pod_spec={"terminationGracePeriodSeconds": 3},
    ),
    Fault.DELETE: Injection(inject=_delete),
    Fault.FORCE_DELETE: Injection(inject=lambda target: _delete(target, "--grace-period=0", "--force")),
    # Soon enough after the deletion for rank 1 to complete as well.
    Fault.LOST_AT_THE_END: Injection(
        inject=lambda target: _delete(target, "--grace-period=0", "--force"), hold_seconds=0.2
    ),
    Fault.EVICT: Injection(inject=_evict),
    Fault.SERVICE: Injection(inject=_delete_service),
    Fault.SUSPEND: Injection(inject=_suspend, repair=_resume),
    Fault.EDIT: Injection(inject=_edit),
    Fault.KUBELET: Injection(inject=_lose_node, repair=_find_node, hold_seconds=60, pod_spec=IMPATIENT),
    Fault.DRAIN: Injection(inject=_drain, repair=_end_drain),
    Fault.OPERATOR: Injection(inject=_kill_operators, repair=_wait_takeover),
    Fault.LEADER: Injection(inject=_kill_leader, repair=_wait_takeover),
    Fault.API_SERVER: Injection(inject=_restart_api_server, hold_seconds=6),
    Fault.EXCEPTION: Injection(inject=lambda target: target.signal(1, signal.SIGRTMIN)),
    Fault.BOTH: Injection(inject=_exit_both),
    Fault.MAIN_PROCESS: Injection(inject=lambda target: os.kill(target.main_process(1), signal.SIGKILL)),
    Fault.FIRST_MAIN_PROCESS: Injection(inject=lambda target: os.kill(target.main_process(0), signal.SIGKILL)),
    Fault.KILL_IN_RESTART: Injection(inject=_kill_in_restart),
    Fault.REPLACED_AGAIN: Injection(inject=_kill_replacement),
    # The steps that are left take half a minute: the operator reads the progress every 10 s.
    Fault.REPLACED_LATER: Injection(inject=_kill_replacement_later, later_step_seconds=0.5),
    Fault.NO_OTHER_NODE: Injection(
        inject=_drain,
        repair=_end_drain,
        spec={"minNodes": 1, "deadlines": {"fullSizeSeconds": 5}},
        pod_spec=_NO_SHARED_NODE,
    ),
    Fault.GROW: Injection(inject=lambda target: _scale(target, num_nodes=NUM_RANKS + 1)),
    Fault.SHRINK: Injection(inject=lambda target: _scale(target, num_nodes=NUM_RANKS - 1)),
    Fault.OPERATOR_AWAY: Injection(inject=_kill_without_operators, hold_seconds=6),
    Fault.API_SERVER_AWAY: Injection(inject=_kill_without_api_server, hold_seconds=6),
    Fault.DNS: Injection(inject=_stop_dns, repair=_start_dns, hold_seconds=6),
}
