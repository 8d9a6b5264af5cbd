"""The real Kueue as a component of a control plane.

`DDPJOB_TEST_KUEUE` names the program: `go build -o manager ./cmd/kueue` in a copy of its repository, which also holds the
CRDs and webhooks. It needs root for a mount namespace, because the path of one of its certificates is fixed.
"""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import yaml

import testbed

#: Replaces /etc for the program, which reads the certificate of its metrics there.
_IN_ITS_OWN_ETC = """
mount -t tmpfs kueue /etc && mkdir -p /etc/kueue/metrics/certs && cp "$1"/tls.* /etc/kueue/metrics/certs && exec "$2" --config "$3"
"""


def start(cluster: testbed.ControlPlane, program: Path, **configuration: Any) -> None:
    """Install the CRDs and webhooks of Kueue, start it with these fields of its configuration and wait until it serves."""
    webhook_port, health_port, metrics_port = testbed.free_ports(3)
    folder = cluster.folder / "kueue"
    folder.mkdir()
    shutil.copy(cluster.keys / "server.crt", folder / "tls.crt")
    shutil.copy(cluster.keys / "server.key", folder / "tls.key")
    components = program.parent / "config/components"
    cluster.kubectl("apply", "--server-side", "-f", str(components / "crd/bases"))
    for file in (components / "crd/bases").glob("kueue.x-k8s.io_*.yaml"):
        cluster.wait_served(f"{file.stem.partition('_')[2]}.kueue.x-k8s.io")
    cluster.kubectl("create", "namespace", "kueue-system")
    config = folder / "config.json"
    config.write_text(json.dumps({**_configuration(folder, webhook_port, health_port, metrics_port), **configuration}))
    cluster.component(
        "kueue",
        *("--mount", "--propagation", "private", "sh", "-c", _IN_ITS_OWN_ETC, "sh", folder, program, config),
        program=Path("/usr/bin/unshare"),
        ready=lambda: cluster.answers(f"http://127.0.0.1:{health_port}/readyz"),
        environment={"KUBECONFIG": str(cluster.kubeconfig)},
    ).start()
    authority = (cluster.keys / "ca.crt").read_bytes()
    cluster.kubectl.apply(
        _webhooks(components / "webhook/manifests.yaml", f"https://127.0.0.1:{webhook_port}", authority)
    )


def _configuration(folder: Path, webhook_port: int, health_port: int, metrics_port: int) -> dict[str, Any]:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": "kueue-system",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health_port}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics_port}"},
        "webhook": {"host": "127.0.0.1", "port": webhook_port, "certDir": str(folder)},
        "internalCertManagement": {"enable": False},
        "leaderElection": {"leaderElect": False},
        "integrations": {"frameworks": ["pod"]},
        "featureGates": {"VisibilityOnDemand": False},
    }


def _webhooks(manifest: Path, url: str, authority: bytes) -> list[dict[str, Any]]:
    """The webhooks for pods and for Kueue's own types, at this address."""
    made = []
    for body in yaml.safe_load_all(manifest.read_text()):
        kept = []
        for hook in body["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            if path.endswith("--v1-pod") or "kueue-x-k8s-io" in path:
                hook["clientConfig"] = {"url": url + path, "caBundle": base64.b64encode(authority).decode()}
                kept.append(hook)
        made.append({**body, "metadata": {"name": f"kueue-{body['metadata']['name']}"}, "webhooks": kept})
    return made
