"""Make-believe nodes: they are Ready, accept pods, and what the pods do is written in their annotations (`stages.yaml`)."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path
from typing import Any

from testbed.kubectl import Kubectl
from testbed.waiting import wait_for

#: The stages of nodes and pods; its first lines list the annotations that tests may set on pods.
STAGES = Path(__file__).parent / "stages.yaml"

#: Nodes with this label are KWOK's; other nodes are not touched.
NODE_LABEL = "testbed/node=kwok"

_numbers = itertools.count()

#: The addresses of pods on KWOK nodes. Nothing answers there.
POD_RANGE = "10.245.0.0/16"

#: How KWOK learns which file holds a pod's log; all of its schema that is used here.
LOGS_DEFINITION: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "logs.kwok.x-k8s.io"},
    "spec": {
        "group": "kwok.x-k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "Logs", "listKind": "LogsList", "plural": "logs", "singular": "logs"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def add_nodes(kubectl: Kubectl, count: int, *, gpus: int) -> list[str]:
    """Add `count` nodes, each with `gpus` of nvidia.com/gpu, wait until they are Ready, and give their names.

    No name comes twice in a process: pods that wait for a node that a test has deleted must not find it in the next one.
    """
    names = [f"kwok-{next(_numbers)}" for _ in range(count)]
    kubectl.apply([_node(name, gpus=gpus) for name in names])
    arguments = ["wait", "--for=condition=Ready", "--timeout=30s", *(f"node/{name}" for name in names)]
    kubectl(*arguments)
    return names


def _node(name: str, *, gpus: int) -> dict[str, Any]:
    key, value = NODE_LABEL.split("=")
    capacity = {"cpu": "64", "memory": "512Gi", "pods": "500", "ephemeral-storage": "1Ti", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {key: value, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def append_log(kubectl: Kubectl, folder: Path, namespace: str, pod: str, text: str) -> None:
    """Add lines to the log of a pod on a KWOK node, which `kubectl logs` then shows for all its containers.

    `folder` holds the log files. A pod that was never given a log has none: the API server answers 400.
    """
    file = folder / f"{namespace}_{pod}.log"
    first = not file.exists()
    file.parent.mkdir(exist_ok=True)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    with file.open("a") as log:
        # The format of the container runtime interface: time, stream, F for a full line, text.
        log.writelines(f"{now} stdout F {line}\n" for line in text.splitlines())
    if first:
        logs = {
            "apiVersion": "kwok.x-k8s.io/v1alpha1",
            "kind": "Logs",
            "metadata": {"name": pod, "namespace": namespace},
            "spec": {"logs": [{"logsFile": str(file), "follow": False}]},
        }
        kubectl.apply(logs)
        shown = ("logs", pod, f"--namespace={namespace}", "--all-containers")
        wait_for(f"the log of {namespace}/{pod} to be served", lambda: _served(kubectl, shown), seconds=10)


def _served(kubectl: Kubectl, shown: tuple[str, ...]) -> bool:
    return bool(kubectl(*shown))
