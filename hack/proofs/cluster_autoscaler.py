"""The real cluster autoscaler as a component of a control plane.

Its cloud provider `kwok`, which a program has that was built with this tag, creates Node objects. They are Ready once
a test gives them the label of KWOK's nodes, as a machine that has started would be.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import testbed
from testbed import kwok

_NAMESPACE = "kube-system"
#: The label whose value is the node group of a node.
_GROUP_LABEL = "testbed/node-group"
#: Without it the node lifecycle controller removes the taint that every new node has, and pods are placed on the node at once.
_NOT_READY = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "it starts"}
_CAPACITY = {"cpu": "64", "memory": "512Gi", "pods": "500", "ephemeral-storage": "1Ti", "nvidia.com/gpu": "1"}


def start(cluster: testbed.ControlPlane, program: Path, groups: dict[str, int]) -> None:
    """Start the autoscaler with node groups of at most so many nodes, which have one GPU and the label `pool=<group>`."""
    templates = {"apiVersion": "v1", "kind": "List", "items": [_template(*group) for group in groups.items()]}
    options = {
        "apiVersion": "v1alpha1",
        "readNodesFrom": "configmap",
        "nodegroups": {"fromNodeLabelKey": _GROUP_LABEL},
        "nodes": {"skipTaint": True},
        "configmap": {"name": "kwok-provider-templates"},
    }
    cluster.kubectl.apply(
        _config_map("kwok-provider-config", "config", options),
        _config_map("kwok-provider-templates", "templates", templates),
    )
    (port,) = testbed.free_ports(1)
    cluster.component(
        "cluster-autoscaler",
        *("--cloud-provider=kwok", f"--kubeconfig={cluster.kubeconfig}", f"--namespace={_NAMESPACE}"),
        *("--leader-elect=false", f"--address=127.0.0.1:{port}", "--scan-interval=2s", "--scale-down-enabled=false"),
        program=program,
        ready=lambda: cluster.answers(f"http://127.0.0.1:{port}/health-check"),
        environment={
            "KUBECONFIG": str(cluster.kubeconfig),
            "KWOK_PROVIDER_MODE": "local",
            "POD_NAMESPACE": _NAMESPACE,
        },
    ).start()


def nodes_of(cluster: testbed.ControlPlane, group: str) -> list[str]:
    """The nodes that the autoscaler has made in this group."""
    return cluster.kubectl("get", "nodes", f"--selector={_GROUP_LABEL}={group}", "--output=name").split()


def make_ready(cluster: testbed.ControlPlane, group: str) -> None:
    """Let the nodes of this group register as machines that have started."""
    cluster.kubectl("label", "--overwrite", *nodes_of(cluster, group), kwok.NODE_LABEL)


def _template(group: str, most: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": group,
            "labels": {_GROUP_LABEL: group, "pool": group, "kubernetes.io/os": "linux"},
            "annotations": {"cluster-autoscaler.kwok.nodegroup/max-count": str(most)},
        },
        "status": {"capacity": _CAPACITY, "allocatable": _CAPACITY, "conditions": [_NOT_READY]},
    }


def _config_map(name: str, key: str, content: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": _NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {key: json.dumps(content)}}
