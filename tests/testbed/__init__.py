"""Bring up a real Kubernetes on a bare Linux machine, from Go modules and Debian packages alone. README.md says how."""

from testbed.controlplane import ControlPlane
from testbed.processes import ComponentError
from testbed.waiting import DeadlineError, wait_for

__all__ = ["ComponentError", "ControlPlane", "DeadlineError", "wait_for"]
