"""What a release of Kubernetes does where the operator relies on it: one measured line for each fact.

    python -m proofs.kubernetes_semantics

It brings up two real nodes with the test bed, as root, for five minutes. No line is a test: a person compares the lines of two releases.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubernetes import client, config

import testbed
from support.images import build
from testbed import images

SPACE = "default"
TERMINATION_PATH = "/dev/termination-log"
#: A program that ignores SIGTERM by its handler, and one that exits with 7 on it.
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(999)"
OBEYS = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('up', flush=True); time.sleep(999)"


def say(fact: str, found: object) -> None:
    """Print one fact."""
    print(f"{fact}: {found}", flush=True)


class Lab:
    """A cluster, and pods that run Python on it."""

    def __init__(self, cluster: testbed.Cluster, image: str) -> None:
        self.cluster, self.image = cluster, image
        config.load_kube_config(str(cluster.kubeconfig))  # type: ignore[no-untyped-call]
        #: The package's types say that each field may be missing.
        self.core: Any = client.CoreV1Api()
        self.discovery: Any = client.DiscoveryV1Api()

    def run(self, name: str, program: str, *, container: Mapping[str, Any] | None = None, **spec: Any) -> None:
        """Create a pod whose container `main` runs this Python program."""
        main = {"name": "main", "image": self.image, "command": ["python", "-c", program], **(container or {})}
        labels = {"app": name.rpartition("-")[0] or name}
        body: dict[str, Any] = {
            "metadata": {"name": name, "labels": labels},
            "spec": {"restartPolicy": "Never", "containers": [main]},
        }
        body["spec"] |= {"terminationGracePeriodSeconds": 30, **spec}
        self.core.create_namespaced_pod(SPACE, body)

    def pod(self, name: str) -> dict[str, Any] | None:
        """The pod as JSON; None if there is none."""
        try:
            answer = self.core.read_namespaced_pod(name, SPACE, _preload_content=False)
        except client.ApiException as error:
            if error.status == 404:
                return None
            raise
        found: dict[str, Any] = json.loads(answer.data)
        return found

    def until(self, what: Callable[[dict[str, Any]], object], name: str, seconds: float = 120.0) -> float:
        """Seconds until the pod is so."""
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            if (pod := self.pod(name)) is not None and what(pod):
                return time.monotonic() - began
            time.sleep(0.01)
        raise TimeoutError(f"{name} after {seconds:.0f} s: {json.dumps((self.pod(name) or {}).get('status'))}")

    def until_gone(self, name: str) -> float:
        """Seconds until there is no such pod."""
        began = time.monotonic()
        while self.pod(name) is not None:
            time.sleep(0.01)
        return time.monotonic() - began

    def ended(self, name: str) -> dict[str, Any]:
        """How the container of an ended pod ended."""
        self.until(lambda pod: pod["status"]["phase"] in ("Failed", "Succeeded"), name)
        pod = self.pod(name)
        assert pod is not None
        found: dict[str, Any] = main_state(pod)["terminated"]
        return {**found, "phase": pod["status"]["phase"]}

    def process(self, name: str) -> int:
        """The process of the container, on this machine."""
        return int(self.cluster.container_pid(SPACE, name, "main"))

    def starts(self, name: str, program: str, **options: Any) -> None:
        """Create such a pod, and wait until its program has printed `up`."""
        self.run(name, program, **options)
        self.until(lambda _: "up" in self.log(name), name)

    def log(self, name: str, **options: Any) -> str:
        """The log of the container, or the status of the answer."""
        try:
            return str(self.core.read_namespaced_pod_log(name, SPACE, **options))
        except client.ApiException as error:
            return f"HTTP {error.status}"


def main_state(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The state of the container."""
    statuses = pod["status"].get("containerStatuses") or [{"state": {}}]
    state: dict[str, Any] = statuses[0]["state"]
    return state


def is_alive(process: int) -> bool:
    """Whether the process has not ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@contextmanager
def death_of(process: int) -> Iterator[Callable[[], float]]:
    """Measure the seconds until a process has ended."""
    began, died = time.monotonic(), threading.Event()
    seconds: list[float] = []

    def watch() -> None:
        while is_alive(process):
            time.sleep(0.005)
        seconds.append(time.monotonic() - began)
        died.set()

    threading.Thread(target=watch, daemon=True).start()
    yield lambda: round(seconds[0], 2) if died.wait(120) else float("inf")


def ends(lab: Lab) -> None:
    """How late the API shows the end of a process."""
    lab.starts("end-0", "print('up', flush=True); import time; time.sleep(3); raise SystemExit(3)")
    process = lab.process("end-0")
    with death_of(process) as died:
        died()
        state = lab.until(lambda pod: "terminated" in main_state(pod), "end-0")
        phase = state + lab.until(lambda pod: pod["status"]["phase"] == "Failed", "end-0")
    say("end of the process to state.terminated, to phase Failed (s)", (round(state, 2), round(phase, 2)))


def termination_messages(lab: Lab) -> None:
    """What becomes the termination message."""
    line = f"open('{TERMINATION_PATH}', 'w').write('a' * 5000 + 'END')"
    fallback = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    lab.run("msg-file", line)
    lab.run("msg-log", "print('b' * 3000 + 'END'); raise SystemExit(1)", container=fallback)
    lab.run("msg-both", f"print('log'); {line}; raise SystemExit(1)", container=fallback)
    lab.run("msg-zero", "print('log')", container=fallback)
    for name in ("msg-file", "msg-log", "msg-both", "msg-zero"):
        message = lab.ended(name).get("message")
        say(f"termination message of {name}: length, end", message and (len(message), message[-4:].strip()))


def deletions(lab: Lab) -> None:
    """What a deletion with a short grace proves."""
    for name, grace in (("grace-1", 1), ("grace-0", 0)):
        lab.starts(name, DEAF)
        with death_of(lab.process(name)) as died:
            lab.core.delete_namespaced_pod(name, SPACE, grace_period_seconds=grace)
            gone = round(lab.until_gone(name), 2)
            say(
                f"delete with grace {grace} of a program that ignores SIGTERM: object gone, process gone (s)",
                (gone, died()),
            )
    for number in range(3):
        lab.starts(f"many-{number}", DEAF)
    with death_of(lab.process("many-0")) as died:
        lab.core.delete_collection_namespaced_pod(SPACE, label_selector="app=many", grace_period_seconds=1)
        gone = round(max(lab.until_gone(f"many-{number}") for number in range(3)), 2)
        say("deletecollection of 3 with grace 1: objects gone, process gone (s)", (gone, died()))


def deadline(lab: Lab) -> None:
    """A pod that is stopped by a deadline, which keeps its log."""
    lab.starts("deadline-0", OBEYS)
    with death_of(lab.process("deadline-0")) as died:
        lab.core.patch_namespaced_pod("deadline-0", SPACE, {"spec": {"activeDeadlineSeconds": 1}})
        failed = round(lab.until(lambda pod: pod["status"]["phase"] == "Failed", "deadline-0"), 2)
        pod = lab.pod("deadline-0") or {}
        say(
            "activeDeadlineSeconds 1 of a running pod: process gone, Failed (s), reason, exit code",
            (died(), failed, pod["status"].get("reason"), lab.ended("deadline-0")["exitCode"]),
        )
    say("its log afterwards", lab.log("deadline-0").strip())
    try:
        lab.core.patch_namespaced_pod("deadline-0", SPACE, {"spec": {"activeDeadlineSeconds": 9}})
        say("raising it", "accepted")
    except client.ApiException as error:
        say("raising it", f"HTTP {error.status}")


def restarts_in_place(lab: Lab) -> None:
    """Containers that start again within their pod."""
    program = "import os, time; print('up', os.path.exists('/tmp/x'), flush=True); open('/tmp/x', 'w'); time.sleep(1); raise SystemExit(42)"
    for action in ("Restart", "RestartAllContainers"):
        name = f"again-{action.lower()}"
        rule = {"action": action, "exitCodes": {"operator": "In", "values": [42]}}
        try:
            lab.run(name, program, container={"restartPolicy": "Never", "restartPolicyRules": [rule]})
        except client.ApiException as error:
            say(f"restartPolicyRules {action}", f"HTTP {error.status}")
            continue
        times: list[float] = []
        began, seen = time.monotonic(), 0
        while len(times) < 3 and time.monotonic() < began + 90:
            statuses = ((lab.pod(name) or {}).get("status") or {}).get("containerStatuses") or [{}]
            if statuses[0].get("restartCount", 0) > seen and "running" in statuses[0].get("state", {}):
                seen = statuses[0]["restartCount"]
                times.append(round(time.monotonic() - began, 1))
            time.sleep(0.05)
        say(f"restartPolicyRules {action}: times of the next starts (s), 1 s of it running", times)
        say(f"restartPolicyRules {action}: previous log", lab.log(name, previous=True).strip())
        lab.core.delete_namespaced_pod(name, SPACE, grace_period_seconds=0)


def slices(lab: Lab) -> None:
    """The addresses that a headless Service publishes."""
    service: dict[str, Any] = {
        "metadata": {"name": "ranks"},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True},
    }
    service["spec"] |= {"selector": {"app": "rank"}, "ports": [{"port": 29500}]}
    lab.core.create_namespaced_service(SPACE, service)
    never = {"readinessProbe": {"exec": {"command": ["false"]}}}
    lab.starts("rank-0", OBEYS, container=never)

    def conditions() -> object:
        found = lab.discovery.list_namespaced_endpoint_slice(
            SPACE, label_selector="kubernetes.io/service-name=ranks"
        ).items
        return [(e.target_ref.name, e.conditions.ready, e.conditions.serving) for s in found for e in s.endpoints or ()]

    time.sleep(2)
    say("endpoints of a pod that is not ready: name, ready, serving", conditions())
    os.kill(lab.process("rank-0"), signal.SIGKILL)
    lab.ended("rank-0")
    time.sleep(5)
    say("endpoints 5 s after it has failed", conditions())
    lab.core.delete_namespaced_pod("rank-0", SPACE)
    time.sleep(1)
    say("endpoints 1 s after it was deleted", conditions())


def logs(lab: Lab) -> None:
    """Requests for the end of a log."""
    lab.starts(
        "lines-0", "[print('line', n) for n in range(20000)]; print('up', flush=True); import time; time.sleep(99)"
    )
    took = []
    for _ in range(100):
        began = time.monotonic()
        tail = lab.log("lines-0", tail_lines=20, limit_bytes=8192)
        took.append(time.monotonic() - began)
    say("100 requests of the last 20 lines: median, most (ms)", (round(sorted(took)[50] * 1e3), round(max(took) * 1e3)))
    cut = lab.log("lines-0", tail_lines=20, limit_bytes=50)
    say("limitBytes keeps the oldest of these lines", cut == tail[:50])
    lab.core.delete_namespaced_pod("lines-0", SPACE, grace_period_seconds=0)
    say("log after deletion", lab.log("lines-0"))


def memory(lab: Lab) -> None:
    """How the end of a container is reported that ran out of memory."""
    eats = "x = bytearray(400 * 2**20); print(len(x))"
    child = f"import subprocess, sys; code = subprocess.run([sys.executable, '-c', '{eats}']).returncode; sys.exit(0)"
    limit = {"resources": {"limits": {"memory": "96Mi"}}}
    for name, program in (("oom-main", eats), ("oom-child", child)):
        lab.run(name, program, container=limit)
        ended = lab.ended(name)
        say(
            f"out of memory, {name}: phase, reason, exit code",
            tuple(ended.get(k) for k in ("phase", "reason", "exitCode")),
        )


def lost_node(lab: Lab) -> None:
    """A node whose kubelet is gone."""
    toleration = {"effect": "NoExecute", "operator": "Exists", "tolerationSeconds": 5}
    node = lab.cluster.nodes[1]
    lab.starts("lost-0", DEAF, nodeName=node.name, tolerations=[toleration])
    process = lab.process("lost-0")
    node.kill_kubelet()
    began = time.monotonic()

    def ready() -> str:
        return str(next(c.status for c in lab.core.read_node(node.name).status.conditions if c.type == "Ready"))

    while ready() == "True":
        time.sleep(0.1)
    say("kubelet killed: Ready is Unknown (s)", (round(time.monotonic() - began, 1), ready()))
    lab.until(lambda pod: "deletionTimestamp" in pod["metadata"], "lost-0")
    pod = lab.pod("lost-0") or {}
    reasons = [c.get("reason") for c in pod["status"]["conditions"] if c["type"] == "DisruptionTarget"]
    say(
        "its pod is marked for deletion (s), why, phase, process alive",
        (round(time.monotonic() - began, 1), reasons, pod["status"]["phase"], is_alive(process)),
    )
    say("its log meanwhile", lab.log("lost-0"))
    taint = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute", "value": "x"}
    taints = [t.to_dict() for t in lab.core.read_node(node.name).spec.taints or ()]
    lab.core.patch_node(
        node.name,
        {
            "spec": {
                "taints": [{k: v for k, v in t.items() if k in ("key", "effect", "value") and v} for t in taints]
                + [taint]
            }
        },
    )
    say(
        "with the taint out-of-service the object is gone (s), process alive",
        (round(lab.until_gone("lost-0"), 1), is_alive(process)),
    )


FACTS: Sequence[Callable[[Lab], None]] = (
    ends, termination_messages, deletions, deadline, restarts_in_place, slices, logs, memory, lost_node,
)  # fmt: skip


def main() -> None:
    """Print all facts; one that cannot be measured says why, and the others follow."""
    image = build("trainer-cpu")
    with testbed.Cluster(nodes=2) as cluster:
        images.load(image, cluster)
        lab = Lab(cluster, image.name)
        say("release", client.VersionApi().get_code().git_version)
        say("kubelet", lab.core.read_node(cluster.nodes[0].name).status.node_info.kubelet_version)
        for facts in FACTS:
            try:
                facts(lab)
            except Exception as error:  # noqa: BLE001 whatever it is, the other facts follow
                say(f"{facts.__name__} could not be measured", repr(error)[:300])


if __name__ == "__main__":
    main()
