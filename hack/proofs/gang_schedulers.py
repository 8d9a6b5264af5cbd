"""The contract of gang schedulers, with the real Volcano and the real coscheduling.

    pytest -p proofs.gang_schedulers tests/cluster/gangs/test_gang_contract.py --volcano DIRECTORY --coscheduling DIRECTORY

A directory is a copy of the repository of Volcano or scheduler-plugins, which has the CRDs, with its programs in it: `scheduler`
and `controller-manager` of Volcano, `scheduler` of scheduler-plugins. The test bed cannot build them, because these
modules are not on the Go module proxy. `README.md` says with which versions the proof ran last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import testbed
from support import gang_providers

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


def pytest_addoption(parser: pytest.Parser) -> None:
    """The directories."""
    for name in _SCHEDULERS:
        parser.addoption(f"--{name}", type=lambda text: Path(text).resolve(), help=f"the repository of {name}, built")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Put the schedulers in the place of those that the test bed builds, before a fixture has read which these are."""
    options = vars(early_config.known_args_namespace)
    gang_providers.PROVIDERS[:] = [
        replace(provider, start=partial(start, options[name]))
        for name, (provider, start) in _SCHEDULERS.items()
        if options[name]
    ]


def start_volcano(repository: Path, cluster: testbed.ControlPlane) -> None:
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
    # It preempts only for jobs that the cluster as a whole has room for, on whichever nodes.
    cluster.add_kwok_nodes(1, gpus=4)


def start_coscheduling(repository: Path, cluster: testbed.ControlPlane) -> None:
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


_SCHEDULERS: dict[str, tuple[gang_providers.Provider, Callable[[Path, testbed.ControlPlane], None]]] = {
    "volcano": (gang_providers.VOLCANO, start_volcano),
    "coscheduling": (gang_providers.COSCHEDULING, start_coscheduling),
}


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
