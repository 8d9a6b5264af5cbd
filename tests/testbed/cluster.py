"""A whole cluster on this machine: a control plane and real nodes. Needs root, and is alone of its kind on a machine."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from testbed import controlgroups, network, oci, packages, ports, tools
from testbed.controlplane import ControlPlane
from testbed.helm import Helm
from testbed.instance import Instance, InstanceError, instances
from testbed.journal import clear_packet_filter, shown_packet_filter
from testbed.kubectl import Kubectl
from testbed.node import PAUSE_IMAGE, Node
from testbed.processes import Component
from testbed.servers import SERVICE_RANGE

#: A silent node becomes NotReady after so long; 12 s later at most, with the controller's own period.
NODE_MONITOR_GRACE_SECONDS = 8

#: Who owns the volumes: the numeric user and group of the images' programs.
VOLUME_OWNER = 65532

NUM_VOLUMES = 4

#: Whether packets between two ports of a bridge pass the packet filter.
_BRIDGED = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")

#: What the names of kube-router's chains and sets of addresses begin with. Those of kube-proxy are in other tables.
_POLICY_CHAINS = "KUBE-"

#: The longest path of a Unix socket is 107 bytes, and a kubelet makes sockets this far below the instance's folder.
_LONGEST_SOCKET = "node-0/kubelet/plugins_registry/kubelet.sock"

#: Denials are not cached, as kubeadm configures it: a Service's name is asked for before its pods are there. The second
#: block answers what is not the cluster's; without it search lists end in SERVFAIL.
_COREFILE = """\
cluster.local:53 in-addr.arpa:53 ip6.arpa:53 {{
    bind {address}
    errors
    health 127.0.0.1:{port}
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig}
        ttl 30
    }}
    cache 30 {{
        disable success cluster.local
        disable denial cluster.local
    }}
}}
.:53 {{
    bind {address}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


class Cluster:
    """A control plane with `nodes` real nodes; a context manager that starts it, and removes all it made.

    Attributes:
        control_plane: its control plane.
        nodes: its nodes, in order of their names `node-0`, `node-1`, ...
    """

    def __init__(self, name: str | None = None, *, nodes: int = 2) -> None:
        self.control_plane = ControlPlane(
            name,
            address=network.Subnet(0).gateway,
            node_monitor_grace_seconds=NODE_MONITOR_GRACE_SECONDS,
            node_names=tuple(f"node-{number}" for number in range(nodes)),
        )
        # Short, for the sockets in it.
        digest = hashlib.sha256(str(self.control_plane.folder).encode()).hexdigest()[:8]
        self._run = Path("/run") / f"testbed-{digest}"
        self.nodes = [Node(self.control_plane, number, self._run / str(number)) for number in range(nodes)]

    @classmethod
    def attach(cls, name: str) -> Cluster:
        """The running cluster `name`, which another process started: to load images and find containers.

        Raises:
            InstanceError: no such cluster runs.
        """
        instance = Instance(name)
        if not instance.folder.exists() or "nodes" not in instance.description:
            raise InstanceError(
                f"no cluster {name!r} with nodes is running; python -m testbed status lists those that are"
            )
        return cls(name, nodes=int(instance.description["nodes"]))

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig with all rights."""
        return self.control_plane.kubeconfig

    @property
    def kubectl(self) -> Kubectl:
        """A kubectl with all rights."""
        return self.control_plane.kubectl

    @property
    def helm(self) -> Helm:
        """A helm with all rights."""
        return self.control_plane.helm

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and wait until all nodes are Ready.

        Raises:
            InstanceError: not root, or a cluster with nodes is running.
            MissingPackageError, NetworkError, ComponentError: as they say; everything is removed again.
        """
        self._refuse_impossible()
        packages.install_missing()
        tools.build(tools.CONTROL_PLANE | tools.NODES)
        self.control_plane.create()
        with self.control_plane.removed_on_failure():
            began = time.monotonic()
            self._launch()
            print(f"testbed: {len(self.nodes)} nodes ready in {time.monotonic() - began:.1f} s", flush=True)

    def stop(self) -> None:
        """End every process and remove everything that was made; the nodes' image stores stay for the next cluster."""
        self.control_plane.stop()

    def detach(self) -> None:
        """Let it outlive this process, until `python -m testbed down`."""
        self.control_plane.detach()

    def load_image(self, archive: Path) -> str:
        """Import an OCI archive of one image into all nodes, where it is not there yet; gives the image's name.

        Raises:
            ArchiveError: not an archive of one named image.
            ComponentError: a node refused it.
        """
        image = oci.read(archive)
        self._on_all_nodes(lambda node: node.load_image(archive, image))
        return image.name

    def container_pid(self, namespace: str, pod: str, container: str) -> int:
        """The process id, on this machine, of the first process of a running container.

        Raises:
            ProcessLookupError: it does not run.
        """
        found = self.kubectl.json("get", "pod", pod, f"--namespace={namespace}")
        statuses = found["status"].get("containerStatuses", [])
        ids = [status["containerID"] for status in statuses if status["name"] == container and "containerID" in status]
        if not ids:
            raise ProcessLookupError(f"pod {namespace}/{pod} has no started container {container!r}")
        node = next(node for node in self.nodes if node.name == found["spec"]["nodeName"])
        return node.container_pid(ids[0].removeprefix("containerd://"))

    @contextlib.contextmanager
    def enforced_network_policies(self) -> Iterator[Callable[[str, str], bool]]:
        """Enforce NetworkPolicies on all nodes within this context, as the networks of most clusters do all the time.

        Gives a function that returns whether the pod of this namespace and name is isolated by a policy already.

        Raises:
            MissingPackageError, ComponentError: as they say.
        """
        packages.install_missing(packages.POLICY_PROGRAMS)
        journal, ready = self.control_plane.instance.journal, self.control_plane.folder / "policies-enforced"
        journal.record("sysctl", path=str(_BRIDGED), before=_BRIDGED.read_text())
        _BRIDGED.write_text("1")  # also between pods of one node
        journal.record("packet filter", prefix=_POLICY_CHAINS)
        controller = self.control_plane.component(
            "kube-router", self.kubeconfig, self.nodes[0].name, SERVICE_RANGE, ready, ready=ready.exists
        )
        try:
            controller.start()

            def isolates(namespace: str, pod: str) -> bool:
                controller.check()
                return f"POD name:{pod} namespace: {namespace} " in shown_packet_filter()

            yield isolates
        finally:
            controller.kill()
            ready.unlink(missing_ok=True)
            clear_packet_filter(_POLICY_CHAINS)

    def add_volume(self, name: str) -> None:
        """Add a PersistentVolume: a folder of this machine, the same on all nodes, writable for `VOLUME_OWNER`.

        A claim that names no storage class gets one of those that are free.
        """
        folder = self.control_plane.folder / "volumes" / name
        folder.mkdir(parents=True)
        os.chown(folder, VOLUME_OWNER, VOLUME_OWNER)
        self.kubectl.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": name},
                "spec": {
                    "capacity": {"storage": "10Gi"},
                    "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
                    "storageClassName": "testbed",
                    "persistentVolumeReclaimPolicy": "Retain",
                    "hostPath": {"path": str(folder), "type": "Directory"},
                },
            }
        )

    def _refuse_impossible(self) -> None:
        if os.geteuid() != 0:
            raise InstanceError("real nodes need root; without it: a control plane alone (--nodes 0)")
        for other in instances():
            if other.alive and "nodes" in other.description:
                raise InstanceError(
                    f"the cluster {other.name!r} with nodes is running; a machine holds one: python -m testbed down --name {other.name}"
                )
        longest = self.control_plane.folder / _LONGEST_SOCKET
        if len(str(longest)) > 107:
            raise InstanceError(f"{longest} is too long for a Unix socket (107): shorten TESTBED_CACHE_DIR or the name")

    def _launch(self) -> None:
        instance = self.control_plane.instance
        instance.describe(nodes=str(len(self.nodes)))
        for kind, folder in (("folder", self._run), ("mounts", self._run), ("mounts", self.control_plane.folder)):
            instance.journal.record(kind, path=str(folder))
        controlgroups.create(instance.journal, f"{self._run.name}/system")
        for node in self.nodes:
            controlgroups.create(instance.journal, node.control_group)
        network.set_up(instance.journal, [node.subnet for node in self.nodes])

        for node in self.nodes:
            node.start_containerd()
        self.control_plane.launch()
        self.load_image(self._pause_archive())

        for node in self.nodes:
            node.launch_kubelet()
        services = [self._name_server(), self._proxy()]
        for service in services:
            service.launch()
        self.kubectl.apply(_STORAGE_CLASS, _NAME_SERVER_RIGHTS)
        for number in range(NUM_VOLUMES):
            self.add_volume(f"testbed-{number}")
        for service in services:
            service.wait_ready()
        for node in self.nodes:
            node.wait_ready()

    def _on_all_nodes(self, act: Callable[[Node], None]) -> None:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for outcome in [pool.submit(act, node) for node in self.nodes]:
                outcome.result()

    def _pause_archive(self) -> Path:
        archive = self.control_plane.folder / "pause.tar"
        oci.write_program(archive, name=PAUSE_IMAGE, program=tools.path("pause"))
        return archive

    def _name_server(self) -> Component:
        (port,) = ports.free(1)
        corefile = self.control_plane.folder / "Corefile"
        kubeconfig = self.control_plane.kubeconfig_of("coredns")
        corefile.write_text(_COREFILE.format(address=network.Subnet(0).gateway, port=port, kubeconfig=kubeconfig))
        return self.control_plane.component(
            "coredns", f"-conf={corefile}", ready=lambda: self.control_plane.answers(f"http://127.0.0.1:{port}/health")
        )

    def _proxy(self) -> Component:
        health_port, metrics_port = ports.free(2)
        return self.control_plane.component(
            "kube-proxy",
            f"--kubeconfig={self.control_plane.kubeconfig_of('kube-proxy')}",
            "--proxy-mode=nftables",
            f"--hostname-override={self.nodes[0].name}",
            f"--cluster-cidr={network.POD_RANGE}",
            # Leave the machine's own connection tracking limits alone.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
            f"--healthz-bind-address=127.0.0.1:{health_port}",
            f"--metrics-bind-address=127.0.0.1:{metrics_port}",
            ready=lambda: self.control_plane.answers(f"http://127.0.0.1:{health_port}/healthz"),
        )


_STORAGE_CLASS: dict[str, Any] = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "testbed", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "kubernetes.io/no-provisioner",
}

_NAME_SERVER_RIGHTS: list[dict[str, Any]] = [
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "coredns"},
        "rules": [
            {"apiGroups": [""], "resources": ["services", "namespaces", "pods"], "verbs": ["list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "coredns"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "coredns"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "coredns"}],
    },
]
