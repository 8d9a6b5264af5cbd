"""A Kubernetes control plane without nodes: etcd, API server, controller manager, scheduler, and KWOK for simulated nodes.

Real authorization, admission and ServiceAccount tokens; needs no root and listens at one address only, which is loopback by
default. Any number of them can run at once.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from testbed import kubeconfig, kwok, ports, servers, tools
from testbed.helm import Helm
from testbed.instance import Instance
from testbed.kubectl import Kubectl
from testbed.processes import Component
from testbed.waiting import wait_for

#: The first address of servers.SERVICE_RANGE: where pods find the API server.
API_SERVICE_ADDRESS = "10.96.0.1"

_COMPONENT_USERS = {
    "admin": "admin|system:masters",
    "kube-controller-manager": "system:kube-controller-manager",
    "kube-scheduler": "system:kube-scheduler",
    "kube-proxy": "system:kube-proxy",
    "coredns": "coredns",
    "kwok": "kwok|system:masters",
    "kubelet-client": "kube-apiserver|system:masters",
}

_numbers = itertools.count(1)


def _gangs() -> tuple[str, tuple[str, ...]]:
    """The API version of PodGroups in the release of the control plane, and the feature gates of gang scheduling."""
    if tools.release() < (1, 37):
        return "scheduling.k8s.io/v1alpha2", ("GenericWorkload", "GangScheduling")
    return "scheduling.k8s.io/v1beta1", ("GenericWorkload",)


class ControlPlane:
    """A control plane; a context manager that starts it, and removes it with everything it made.

    Args:
        name: names its folder; a fresh name where none is given.
        address: where its servers listen.
        node_monitor_grace_seconds: a node silent for so long becomes NotReady (Kubernetes' own default is 50).
        gang_scheduling: serve PodGroup (`scheduling.k8s.io/v1beta1`, in 1.36 `v1alpha2`) and schedule by it.
        gang_gates: feature gates of what else a PodGroup can have, such as a topology constraint.
        node_names: real nodes that will join; each gets credentials.
        audited: resources by API group, of which writes are recorded in `audit_log`.

    Attributes:
        kubeconfig: path of a self-contained kubeconfig of a cluster administrator.
        kubectl: kubectl bound to it.
        components: by name; each may be killed and started again.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        address: str = "127.0.0.1",
        node_monitor_grace_seconds: int = 50,
        gang_scheduling: bool = False,
        gang_gates: Sequence[str] = (),
        node_names: tuple[str, ...] = (),
        audited: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.name = name or f"test-{os.getpid()}-{next(_numbers)}"
        self.instance = Instance(self.name)
        self.address = address
        self.components: dict[str, Component] = {}
        self.node_monitor_grace_seconds = node_monitor_grace_seconds
        self.gang_api, gates = _gangs() if gang_scheduling else ("", ())
        self.feature_gates = ",".join(f"{gate}=true" for gate in (*gates, *gang_gates))
        self._node_names = node_names
        self.audited = audited

    @property
    def folder(self) -> Path:
        """Its folder: keys, kubeconfig, logs."""
        return self.instance.folder

    @property
    def keys(self) -> Path:
        """The folder of its keys and certificates."""
        return self.folder / "keys"

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig with all rights."""
        return self.kubeconfig_of("admin")

    @property
    def kubectl(self) -> Kubectl:
        """A kubectl with all rights."""
        return Kubectl(self.kubeconfig, cache=self.folder / "kubectl")

    @property
    def helm(self) -> Helm:
        """A helm with all rights."""
        return Helm(self.kubeconfig, cache=self.folder / "kubectl")

    @property
    def server(self) -> str:
        """The API server's URL."""
        return self.instance.description["server"]

    @property
    def audit_log(self) -> Path:
        """What was written, for `audit.writes`; there only if it was asked for."""
        return self.folder / "logs" / "audit.log"

    @property
    def serves(self) -> bool:
        """Whether the API server is ready."""
        return self.answers(f"{self.server}/readyz")

    def kubeconfig_of(self, user: str) -> Path:
        """The kubeconfig of a component or node."""
        return self.folder / f"{user}.kubeconfig"

    def wait_served(self, resource: str) -> None:
        """Wait until the API server serves a custom resource, for example `jobs.example.org`.

        `kubectl wait` does not: it fails on a definition that is so new that it has no conditions.
        """
        served = ("api-resources", "--output=name")
        wait_for(f"the API server to serve {resource}", lambda: resource in self.kubectl(*served).split())

    def kubeconfig_of_account(self, namespace: str, account: str) -> Path:
        """A kubeconfig of a service account: with a token, as its pods have one."""
        document = json.loads(self.kubeconfig.read_text())
        document["users"][0]["user"] = {"token": self.kubectl("create", "token", account, "-n", namespace).strip()}
        file = self.folder / f"account-{namespace}-{account}.kubeconfig"
        file.touch(mode=0o600)
        file.write_text(json.dumps(document))
        return file

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and wait until it serves.

        Raises:
            InstanceError: one of this name is running.
            ComponentError: a component ended, or was not ready in time; everything is removed again.
        """
        self.create()
        with self.removed_on_failure():
            self.launch()

    def create(self) -> None:
        """Build what is missing and make the folder; nothing runs yet.

        Raises:
            InstanceError: one of this name is running.
        """
        tools.build(tools.CONTROL_PLANE)
        self.instance = Instance.create(self.name)
        for folder in (self.keys, self.folder / "logs", self.folder / "etcd"):
            folder.mkdir()

    def launch(self) -> None:
        """Start everything in the folder that `create` made, and wait until it serves.

        Raises:
            ComponentError: a component ended, or was not ready in time.
        """
        began = time.monotonic()
        self._launch()
        print(f"testbed: control plane {self.name} ready in {time.monotonic() - began:.1f} s", flush=True)

    @contextlib.contextmanager
    def removed_on_failure(self) -> Iterator[None]:
        """Remove all that was made if the body fails."""
        try:
            yield
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process and remove everything that was made."""
        self.instance.remove()
        for component in self.components.values():
            component.kill()
        self.components.clear()

    def detach(self) -> None:
        """Let it outlive this process, until `python -m testbed down`."""
        self.instance.detach()

    def component(
        self,
        name: str,
        *arguments: str | Path,
        ready: Callable[[], bool],
        program: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
        control_groups: Sequence[Path] = (),
    ) -> Component:
        """Declare a component. Its program is the tool of its name where `program` names no other, or no file."""
        self.components[name] = Component(
            name=name,
            command=[program if isinstance(program, Path) else tools.path(program or name), *arguments],
            log=self.folder / "logs" / f"{name}.log",
            journal=self.instance.journal.file,
            ready=ready,
            environment=environment or {},
            control_groups=control_groups,
        )
        return self.components[name]

    def add_kwok_nodes(self, count: int, *, gpus: int = 0) -> list[str]:
        """Add KWOK nodes with `gpus` of nvidia.com/gpu each, wait until they are Ready, and give their names."""
        return kwok.add_nodes(self.kubectl, count, gpus=gpus)

    def append_kwok_log(self, namespace: str, pod: str, text: str) -> None:
        """Add lines to the log of a pod on a KWOK node."""
        kwok.append_log(self.kubectl, self.folder / "pod-logs", namespace, pod, text)

    def _launch(self) -> None:
        etcd_port, peer_port, api_port, manager_port, scheduler_port, kwok_port = ports.free(6)
        self.instance.describe(server=f"https://{self.address}:{api_port}")
        self._make_keys()

        etcd = servers.etcd(self, etcd_port, peer_port)
        api_server = servers.api_server(self, api_port, f"http://127.0.0.1:{etcd_port}")
        # The API server spends its first seconds without its database: the two start together.
        etcd.launch()
        api_server.launch()
        etcd.wait_ready()
        api_server.wait_ready()

        self.kubectl.apply(kwok.LOGS_DEFINITION)
        clients = [
            servers.controller_manager(self, manager_port),
            servers.scheduler(self, scheduler_port),
            servers.kwok_server(self, kwok_port),
        ]
        for component in clients:
            component.launch()
        for component in clients:
            component.wait_ready()
        # Without it no pod can be created in the namespace.
        account = ("get", "serviceaccount", "default", "--ignore-not-found", "--output=name")
        wait_for("the ServiceAccount default/default to be made", lambda: self.kubectl(*account))

    def _make_keys(self) -> None:
        users = dict(_COMPONENT_USERS)
        for node in self._node_names:
            users[node] = f"system:node:{node}|system:nodes"
        addresses = {"127.0.0.1", self.address, API_SERVICE_ADDRESS}
        names = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ]
        command: list[str | Path] = [tools.path("pki"), "-dir", self.keys]
        command += ["-address", ",".join(sorted(addresses)), "-name", ",".join(names)]
        for user, identity in users.items():
            command += ["-client", f"{user}={identity}"]
        subprocess.run(command, check=True, timeout=30)
        for user in users:
            kubeconfig.write(self.kubeconfig_of(user), server=self.server, keys=self.keys, user=user)

    def answers(self, url: str) -> bool:
        """Whether a GET of `url`, with this cluster's authority trusted, gives 200."""
        try:
            trust = ssl.create_default_context(cafile=str(self.keys / "ca.crt"))
            with urllib.request.urlopen(url, timeout=2, context=trust) as answer:  # noqa: S310 - addresses of our own
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False
