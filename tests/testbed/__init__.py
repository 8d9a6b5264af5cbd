"""Bring up a real Kubernetes on a bare Linux machine, from Go modules and Debian packages alone. README.md says how."""

from testbed.cluster import Cluster
from testbed.controlplane import ControlPlane
from testbed.external import ExternalCluster
from testbed.node import Node
from testbed.ports import free as free_ports
from testbed.processes import ComponentError, child_named, is_running, pids_with
from testbed.waiting import DeadlineError, wait_for

__all__ = [
    "Cluster",
    "ComponentError",
    "ControlPlane",
    "DeadlineError",
    "ExternalCluster",
    "Node",
    "child_named",
    "free_ports",
    "is_running",
    "pids_with",
    "wait_for",
]
