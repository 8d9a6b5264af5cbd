"""Somebody else's cluster, reached by its kubeconfig alone: tests work in namespaces of their own and break no nodes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NoReturn

from testbed.errors import TestbedError
from testbed.helm import Helm
from testbed.kubectl import Kubectl


class UnsupportedError(TestbedError):
    """The test bed can do this only to a cluster of its own."""


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

    @property
    def nodes(self) -> NoReturn:
        """Not there: their kubelets cannot be reached."""
        raise UnsupportedError(
            f"nodes of the cluster of {self.kubeconfig} cannot be broken: not one of the test bed's own"
        )

    def load_image(self, archive: Path) -> NoReturn:
        """Not there: the cluster pulls from a registry, or its own tools load images."""
        raise UnsupportedError(
            f"{archive} cannot be loaded into the cluster of {self.kubeconfig}: load it with that cluster's own tools "
            "(kind load image-archive, ...) under the name that the tests use"
        )
