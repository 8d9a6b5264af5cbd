"""The real schedulers of Volcano and scheduler-plugins as components of a control plane.

Each is built in a copy of its repository, which also holds the CRDs: `go build -o . ./cmd/scheduler ./cmd/controller-manager`
for Volcano, `go build -o . ./cmd/scheduler` for scheduler-plugins.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import testbed

#: A scheduler waits for its caches, on a machine that may be busy.
READY_SECONDS = 240
#: One of the default configuration's, with the plugins that gangs and queues need, and with preemption.
_VOLCANO_CONFIGURATION = """
actions: "enqueue, allocate, preempt, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
- plugins:
  - name: overcommit
  - name: drf
    enablePreemptable: false
  - name: predicates
  - name: proportion
  - name: nodeorder
"""


def start_volcano(cluster: testbed.ControlPlane, repository: Path) -> None:
    """Install Volcano's CRDs, start its scheduler and its controllers and wait until they serve."""
    _install_crds(cluster, repository / "config/crd/volcano/bases")
    cluster.kubectl("create", "namespace", "volcano-system")
    configuration = cluster.folder / "volcano.conf"
    configuration.write_text(_VOLCANO_CONFIGURATION)
    options = {
        "scheduler": f"--scheduler-conf={configuration}",
        "controller-manager": "--controllers=queue-controller,pg-controller",  # the first opens queues
    }
    for program, option in options.items():
        health, metrics = testbed.free_ports(2)
        arguments = [option, "--leader-elect=false", f"--kubeconfig={cluster.kubeconfig}", "--enable-healthz"]
        arguments += [f"--healthz-address=127.0.0.1:{health}", f"--listen-address=127.0.0.1:{metrics}"]
        _start(cluster, f"volcano-{program}", repository / program, arguments, f"http://127.0.0.1:{health}/healthz")
    testbed.wait_for("Volcano's default queue", lambda: _has_queue(cluster), seconds=READY_SECONDS)


def start_coscheduling(cluster: testbed.ControlPlane, repository: Path) -> None:
    """Install the CRD of PodGroups, and start a second scheduler that has the plugin."""
    _install_crds(cluster, repository / "manifests/coscheduling")
    profile: dict[str, Any] = {
        "schedulerName": "scheduler-plugins-scheduler",
        "plugins": {
            "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
            "queueSort": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "*"}]},
        },
        "pluginConfig": [{"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": 10}}],
    }
    configuration = cluster.folder / "coscheduling.json"
    configuration.write_text(
        json.dumps(
            {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "leaderElection": {"leaderElect": False},
                "clientConnection": {"kubeconfig": str(cluster.kubeconfig)},
                "profiles": [profile],
            }
        )
    )
    (port,) = testbed.free_ports(1)
    arguments = [f"--config={configuration}", "--bind-address=127.0.0.1", f"--secure-port={port}"]
    arguments += [f"--tls-cert-file={cluster.keys / 'server.crt'}"]
    arguments += [f"--tls-private-key-file={cluster.keys / 'server.key'}"]
    _start(cluster, "coscheduling", repository / "scheduler", arguments, f"https://127.0.0.1:{port}/healthz")


def _install_crds(cluster: testbed.ControlPlane, folder: Path) -> None:
    for file in folder.glob("*.yaml"):
        if "kind: CustomResourceDefinition" in file.read_text():
            cluster.kubectl("apply", "--server-side", "-f", str(file))


def _has_queue(cluster: testbed.ControlPlane) -> bool:
    return bool(cluster.kubectl("get", "queues.scheduling.volcano.sh", "default", "--ignore-not-found", "-o", "name"))


def _start(cluster: testbed.ControlPlane, name: str, program: Path, arguments: Sequence[str], health: str) -> None:
    cluster.component(
        name,
        *arguments,
        program=program,
        ready=lambda: cluster.answers(health),
        environment={"KUBECONFIG": str(cluster.kubeconfig)},
    ).start()
