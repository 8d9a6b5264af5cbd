"""Helm and kubectl on a real API server, for one test."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import testbed
from support.chart_render import CHART, RELEASE
from testbed.kubectl import KubectlError

CRD = "ddpjobs.ddpjob.dev"

_numbers = itertools.count(1)


class Cluster:
    """The control plane, and what one test makes on it."""

    def __init__(self, control_plane: testbed.ControlPlane) -> None:
        self.control_plane = control_plane
        self.kubectl = control_plane.kubectl
        self._namespaces: list[str] = []
        self._releases: list[tuple[str, str]] = []

    def namespace(self, *, restricted: bool = True) -> str:
        """A fresh namespace, which admits only pods of the pod security standard `restricted`."""
        name = f"chart-{next(_numbers)}"
        labels = {"pod-security.kubernetes.io/enforce": "restricted"} if restricted else {}
        self.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        self._namespaces.append(name)
        return name

    def helm(self, *arguments: str | Path, values: Mapping[str, Any] | None = None) -> str:
        """Run helm on this cluster."""
        return self.control_plane.helm(*arguments, values=values)

    def install(
        self,
        namespace: str,
        values: Mapping[str, Any] | None = None,
        *options: str,
        release: str = RELEASE,
        chart: Path = CHART,
    ) -> str:
        """`helm install`."""
        self._releases.append((release, namespace))
        return self.helm("install", release, chart, "--namespace", namespace, *options, values=values or {})

    def uninstall(self, namespace: str, release: str = RELEASE) -> None:
        """`helm uninstall`, until all is gone."""
        self.helm("uninstall", release, "--namespace", namespace, "--wait")
        self._releases.remove((release, namespace))

    def exists(self, *what: str) -> bool:
        """Whether the API server has it: `exists("crd", CRD)`."""
        return bool(self.kubectl("get", *what, "--ignore-not-found", "--output=name"))

    def install_crd(self) -> None:
        """The CRD alone, without Helm."""
        self.kubectl("apply", "--server-side", "--filename", str(CHART / "files" / "crd" / "ddpjob.yaml"))
        self.wait_for_crd()

    def wait_for_crd(self) -> None:
        """Wait until DDPJobs can be created."""
        self.control_plane.wait_served(CRD)

    def may(self, user: str, verb: str, resource: str, namespace: str | None = None) -> bool:
        """Whether the user has the right, by the API server's own authorizer; `pods/log` is a subresource."""
        resource, _, subresource = resource.partition("/")
        options = [f"--as={user}", f"--subresource={subresource}"] + ([f"--namespace={namespace}"] if namespace else [])
        try:
            return self.kubectl("auth", "can-i", verb, resource, *options).strip() == "yes"
        except KubectlError:  # can-i ends with 1 to say no
            return False

    def wait_for_right(self, user: str, verb: str, resource: str, namespace: str | None = None) -> None:
        """Wait until the API server's authorizer knows of a right: it learns of new roles and bindings by watches."""
        what = f"the right of {user} to {verb} {resource}"
        testbed.wait_for(what, lambda: self.may(user, verb, resource, namespace))

    def clean_up(self) -> None:
        """Remove releases, namespaces and the CRD."""
        for release, namespace in self._releases:
            self.helm("uninstall", release, "--namespace", namespace, "--wait", "--ignore-not-found")
        self.kubectl("delete", "crd", CRD, "--ignore-not-found", "--wait", "--timeout=240s")
        if self._namespaces:
            self.kubectl("delete", "namespace", *self._namespaces, "--wait=false")
