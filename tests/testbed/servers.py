"""The programs of a control plane, and their command lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from testbed import audit, kwok
from testbed.processes import Component

if TYPE_CHECKING:
    from testbed.controlplane import ControlPlane

SERVICE_RANGE = "10.96.0.0/16"
SERVICE_ACCOUNT_ISSUER = "https://kubernetes.default.svc.cluster.local"


def etcd(plane: ControlPlane, port: int, peer_port: int) -> Component:
    """The database, of which nothing outlives a power failure."""
    url, peer_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    return plane.component(
        "etcd",
        f"--data-dir={plane.folder / 'etcd'}",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=default={peer_url}",
        "--unsafe-no-fsync",
        "--log-level=warn",
        ready=lambda: plane.answers(f"{url}/readyz"),
    )


def api_server(plane: ControlPlane, port: int, etcd: str) -> Component:
    """The API server, which keeps its objects in this etcd."""
    loopback = plane.address == "127.0.0.1"
    return plane.component(
        "kube-apiserver",
        f"--etcd-servers={etcd}",
        f"--bind-address={plane.address}",
        f"--advertise-address={plane.address}",
        f"--secure-port={port}",
        # Pods cannot reach a loopback address: there is no endpoint to publish.
        f"--endpoint-reconciler-type={'none' if loopback else 'master-count'}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        *_certificate(plane),
        f"--client-ca-file={plane.keys / 'ca.crt'}",
        f"--kubelet-client-certificate={plane.keys / 'kubelet-client.crt'}",
        f"--kubelet-client-key={plane.keys / 'kubelet-client.key'}",
        # Else `kubectl logs` looks the node's name up in DNS.
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-issuer={SERVICE_ACCOUNT_ISSUER}",
        f"--service-account-signing-key-file={plane.keys / 'service-account.key'}",
        f"--service-account-key-file={plane.keys / 'service-account.crt'}",
        "--allow-privileged",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
        f"--feature-gates={plane.feature_gates}",
        f"--runtime-config={plane.gang_api and f'{plane.gang_api}=true'}",
        *_auditing(plane),
        ready=lambda: plane.serves,
    )


def _auditing(plane: ControlPlane) -> tuple[str, ...]:
    if plane.audited is None:
        return ()
    policy = plane.folder / "audit-policy.json"
    policy.write_text(json.dumps(audit.policy(plane.audited)))
    return (f"--audit-policy-file={policy}", f"--audit-log-path={plane.audit_log}")


def _controlling(plane: ControlPlane, user: str, port: int) -> tuple[str, ...]:
    """What the two programs that work through the API server have in common."""
    kubeconfig = plane.kubeconfig_of(user)
    return (
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        *_serving(plane, port),
        "--leader-elect=false",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    )


def controller_manager(plane: ControlPlane, port: int) -> Component:
    """All controllers of Kubernetes but those of clouds."""
    user = "kube-controller-manager"
    return plane.component(
        user,
        *_controlling(plane, user, port),
        "--use-service-account-credentials",
        f"--root-ca-file={plane.keys / 'ca.crt'}",
        f"--service-account-private-key-file={plane.keys / 'service-account.key'}",
        f"--node-monitor-grace-period={plane.node_monitor_grace_seconds}s",
        f"--feature-gates={plane.feature_gates}",
        ready=lambda: plane.answers(f"https://127.0.0.1:{port}/healthz"),
    )


def scheduler(plane: ControlPlane, port: int) -> Component:
    """The scheduler, of gangs as well where the control plane has them."""
    user = "kube-scheduler"
    return plane.component(
        user,
        *_controlling(plane, user, port),
        f"--feature-gates={plane.feature_gates}",
        ready=lambda: plane.answers(f"https://127.0.0.1:{port}/healthz"),
    )


def _serving(plane: ControlPlane, port: int) -> tuple[str, ...]:
    return (
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        *_certificate(plane),
    )


def kwok_server(plane: ControlPlane, port: int) -> Component:
    """What simulates nodes and their pods."""
    return plane.component(
        "kwok",
        f"--kubeconfig={plane.kubeconfig_of('kwok')}",
        f"--config={kwok.STAGES}",
        "--enable-crds=Logs",
        "--node-lease-duration-seconds=40",  # without leases a node counts as silent once the grace has passed
        f"--manage-nodes-with-label-selector={kwok.NODE_LABEL}",
        "--node-ip=127.0.0.1",
        f"--node-port={port}",
        f"--server-address=127.0.0.1:{port}",
        f"--cidr={kwok.POD_RANGE}",
        *_certificate(plane),
        ready=lambda: plane.answers(f"https://127.0.0.1:{port}/healthz"),
    )


def _certificate(plane: ControlPlane) -> tuple[str, ...]:
    return (
        f"--tls-cert-file={plane.keys / 'server.crt'}",
        f"--tls-private-key-file={plane.keys / 'server.key'}",
    )
