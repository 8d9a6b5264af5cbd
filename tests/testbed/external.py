"""Somebody else's cluster, reached by its kubeconfig alone: tests work in namespaces of their own and break no nodes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from testbed.helm import Helm
from testbed.kubectl import Kubectl


@dataclasses.dataclass(frozen=True, slots=True)
class ExternalCluster:
    """The part of `Cluster` that needs no hand on the machine."""

    kubeconfig: Path

    @property
    def kubectl(self) -> Kubectl:
        """A kubectl with the rights of the kubeconfig."""
        return Kubectl(self.kubeconfig)

    @property
    def helm(self) -> Helm:
        """A helm with the rights of the kubeconfig."""
        return Helm(self.kubeconfig)
