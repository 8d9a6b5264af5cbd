"""Kueue as its own chart installs it, except that the program of its Deployment is a component of the control plane.

The API server reaches the webhooks by a Service of type ExternalName that leads to this machine, so nothing here needs root.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from testbed import ports, tools
from testbed.controlplane import ControlPlane
from testbed.helm import Helm
from testbed.kubectl import KubectlError
from testbed.waiting import wait_for

NAMESPACE: Final = "kueue-system"
ACCOUNT: Final = "kueue-controller-manager"
#: Kueue writes the certificate of its webhooks there, and reads it from the files that its Deployment mounts.
CERTIFICATE: Final = "kueue-webhook-server-cert"
_NOT_USED = ("Deployment", "APIService")


def start(cluster: ControlPlane, **configuration: Any) -> None:
    """Install Kueue, start it with these fields of its configuration and the rights of its chart, and wait until it serves.

    Raises:
        ComponentError: it ended, or was not ready in time.
    """
    webhook_port, health_port = ports.free(2)
    folder = cluster.folder / "kueue"
    certificates = folder / "certificates"
    certificates.mkdir(parents=True)
    configuration = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health_port}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": webhook_port, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "integrations": {"frameworks": ["pod"]},
        "featureGates": {"VisibilityOnDemand": False},
        **configuration,
    }
    (folder / "config.json").write_text(json.dumps(configuration))
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.kubectl.apply(list(_objects(configuration, webhook_port)))
    program = cluster.component(
        "kueue",
        *("--config", folder / "config.json"),
        ready=lambda: cluster.answers(f"http://127.0.0.1:{health_port}/readyz"),
        environment={"KUBECONFIG": str(cluster.kubeconfig_of_account(NAMESPACE, ACCOUNT))},
    )

    def has_certificate() -> bool:
        program.check()
        return _mount(cluster, certificates)

    program.launch()
    wait_for("Kueue to make a certificate", has_certificate, seconds=program.ready_seconds)
    program.wait_ready()
    wait_for("the API server to reach Kueue's webhooks", lambda: _is_reached(cluster), seconds=program.ready_seconds)


def _objects(configuration: dict[str, Any], port: int) -> Iterator[dict[str, Any]]:
    """What the chart installs, with webhooks at this port of this machine."""
    values = {"managerConfig": {"controllerManagerConfigYaml": json.dumps(configuration)}}
    for body in yaml.safe_load_all(
        Helm()("template", "kueue", tools.path("kueue-chart"), "--namespace", NAMESPACE, values=values)
    ):
        if body is None or body["kind"] in _NOT_USED:
            continue
        if body["kind"] == "Service":
            body["spec"] = {"type": "ExternalName", "externalName": "localhost"}
        for hook in (*body.get("webhooks", ()), body.get("spec", {}).get("conversion", {}).get("webhook")):
            if hook:
                hook["clientConfig"]["service"]["port"] = port
        yield body


def _mount(cluster: ControlPlane, folder: Path) -> bool:
    """Write the files of the Secret, as a kubelet does for the Deployment; False while Kueue has not filled it."""
    files = cluster.kubectl.json("get", "secret", CERTIFICATE, "-n", NAMESPACE).get("data", {})
    for name, content in files.items():
        (folder / name).write_bytes(base64.b64decode(content))
    return "tls.crt" in files


def _is_reached(cluster: ControlPlane) -> bool:
    """Whether the API server, which sees the certificate after a moment, accepts an object that both kinds of webhooks look at."""
    flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "probe"}}
    try:
        cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(flavor))
    except KubectlError:
        return False
    return True
