"""A real node: containerd and kubelet, with a pod network, an image store and control groups of its own.

Several of them run on one machine. What Kubernetes' programs would share by default (sockets, logs, plugin caches) each
has for itself; the few places that cannot be moved are in the journal.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from testbed import controlgroups, oci, paths, ports, tools
from testbed.controlplane import ControlPlane
from testbed.network import Subnet
from testbed.packages import CNI_PLUGINS
from testbed.processes import Component, ComponentError
from testbed.waiting import wait_for

PAUSE_IMAGE = "testbed.invalid/pause:1"

#: A kubelet renews its lease four times in this time. Must leave room for several renewals within the controller manager's
#: node monitor grace period, else a live node flaps.
NODE_LEASE_SECONDS = 8

#: Unpacking an image of several GB on a small machine takes minutes.
IMPORT_SECONDS = 900

_CONTAINERD_CONFIG = """\
version = 3
root = "{store}"
state = "{run}/state"
oom_score = 0
disabled_plugins = {disabled}

[grpc]
address = "{socket}"

[plugins.'io.containerd.shim.v1.manager']
socket_dir = "{run}/s"

[plugins.'io.containerd.internal.v1.opt']
path = "{folder}/opt"

[plugins.'io.containerd.cri.v1.images']
snapshotter = "overlayfs"
pinned_images.sandbox = "{pause}"

[plugins.'io.containerd.cri.v1.runtime']
# Without CAP_SYS_RESOURCE nobody may lower an OOM score, and every sandbox fails that tries to.
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{cni_plugins}"]
conf_dir = "{folder}/cni"
use_internal_loopback = true

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
options = {{ Root = "{run}/runc" }}
"""

_CRI_PLUGINS = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]


@dataclasses.dataclass(slots=True)
class Node:
    """One node of a cluster; made by it."""

    control_plane: ControlPlane
    number: int
    run: Path

    @property
    def name(self) -> str:
        """Its name in the cluster."""
        return f"node-{self.number}"

    @property
    def subnet(self) -> Subnet:
        """Its pods' network."""
        return Subnet(self.number)

    @property
    def folder(self) -> Path:
        """Its files, except the image store, which outlives it."""
        return self.control_plane.folder / self.name

    @property
    def store(self) -> Path:
        """Containerd's root folder."""
        return paths.image_stores() / self.name

    @property
    def socket(self) -> Path:
        """Where its containerd listens."""
        return self.run / "containerd.sock"

    @property
    def control_group(self) -> str:
        """The parent of its pods' control groups."""
        return f"{self.run.parent.name}/{self.name}"

    @property
    def kubelet(self) -> Component:
        """Its kubelet."""
        return self.control_plane.components[f"kubelet-{self.number}"]

    def kill_kubelet(self) -> None:
        """SIGKILL the kubelet: to the cluster the node is lost, while its containers run on."""
        self.kubelet.kill()

    def start_kubelet(self) -> None:
        """Start the kubelet, again."""
        self.kubelet.start()

    def start_containerd(self) -> None:
        """Start containerd on the store that earlier clusters left, or on an empty one if that is damaged."""
        for folder in (self.folder / "cni", self.folder / "pod-logs", self.store):
            folder.mkdir(parents=True, exist_ok=True)
        self.run.mkdir(parents=True)
        network = self.subnet.bridge
        self.control_plane.instance.journal.record("files", pattern=f"/var/lib/cni/results/{network}-*")
        (self.folder / "cni" / "testbed.conflist").write_text(json.dumps(self._cni_config(), indent=2))
        try:
            self._forget_containers()
            self._containerd(disabled=["io.containerd.nri.v1.nri"]).start()
        except ComponentError as error:
            print(f"testbed: {error}\ntestbed: starting {self.name} with an empty image store", flush=True)
            shutil.rmtree(self.store)
            self._containerd(disabled=["io.containerd.nri.v1.nri"]).start()
        self._forget_replaced_images()

    def _cni_config(self) -> dict[str, object]:
        ipam = {
            "type": "host-local",
            "ranges": [[{"subnet": self.subnet.range}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(self.folder / "ipam"),
        }
        bridge = {
            "type": "bridge",
            "bridge": self.subnet.bridge,
            "isGateway": True,
            "hairpinMode": True,
            "ipMasq": False,
            "ipam": ipam,
        }
        return {"cniVersion": "1.0.0", "name": self.subnet.bridge, "plugins": [bridge]}

    def _forget_containers(self) -> None:
        """Remove the records of an earlier cluster's containers; their processes are gone, their images stay.

        Done with the part of containerd switched off that would read them at its start.
        """
        remembered = self.store / "io.containerd.grpc.v1.cri"
        if not any(remembered.glob("*/*")):
            return
        containerd = self._containerd(disabled=[*_CRI_PLUGINS, "io.containerd.nri.v1.nri"])
        containerd.start()
        for kind in ("containers", "sandboxes"):
            identifiers = [line.split()[0] for line in self.ctr(kind, "list").splitlines()[1:]]
            if identifiers:
                self.ctr(kind, "remove", *identifiers)
        containerd.kill()
        shutil.rmtree(remembered)

    def _containerd(self, *, disabled: Sequence[str]) -> Component:
        config = self.folder / "containerd.toml"
        config.write_text(
            _CONTAINERD_CONFIG.format(
                store=self.store,
                run=self.run,
                socket=self.socket,
                folder=self.folder,
                pause=PAUSE_IMAGE,
                cni_plugins=CNI_PLUGINS,
                disabled=json.dumps(list(disabled)),
            )
        )
        return self.control_plane.component(
            f"containerd-{self.number}",
            f"--config={config}",
            program="containerd",
            ready=self._containerd_answers,
            # It takes the shim from PATH, and Debian's own is too old for it.
            environment={"PATH": f"{tools.path('containerd-shim-runc-v2').parent}:{os.environ['PATH']}"},
            control_groups=controlgroups.of_processes(f"{self.run.parent.name}/system"),
        )

    def _containerd_answers(self) -> bool:
        command = [str(tools.path("ctr")), f"--address={self.socket}", "--timeout=1s", "version"]
        return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0

    def ctr(self, *arguments: str, timeout_seconds: float = 60) -> str:
        """Run containerd's own command line on Kubernetes' namespace.

        Raises:
            ComponentError: it failed.
        """
        command = [str(tools.path("ctr")), f"--address={self.socket}", "--namespace=k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False)
        if done.returncode != 0:
            raise ComponentError(f"ctr {' '.join(arguments)} on {self.name}: {done.stderr.strip()}")
        return done.stdout

    def load_image(self, archive: Path, image: oci.Image) -> None:
        """Import an archive, unless this very image is there under its name."""
        if self._images().get(image.name) != image.digest:
            # Once unpacked, the layers' archives are not needed any more: half the space.
            how = ("--local", "--snapshotter=overlayfs", "--discard-unpacked-layers")
            self.ctr("images", "import", *how, str(archive), timeout_seconds=IMPORT_SECONDS)

    def _images(self) -> dict[str, str]:
        """The digests of the images in the store, by name."""
        lines = self.ctr("images", "list").splitlines()[1:]
        return {fields[0]: fields[2] for fields in map(str.split, lines)}

    def _forget_replaced_images(self) -> None:
        """Drop images whose name went to another. Kubernetes' own name for them, their digest, would keep them for ever."""
        images = self._images()
        named = {digest for name, digest in images.items() if not name.startswith("sha256:")}
        if replaced := [name for name, digest in images.items() if digest not in named]:
            self.ctr("images", "remove", *replaced)

    def launch_kubelet(self) -> None:
        """Start the kubelet and return before it is ready."""
        journal = self.control_plane.instance.journal
        # Two directories that no option of the kubelet moves.
        journal.record("symlinks", folder="/var/log/containers", into=str(self.folder))
        journal.record("files", pattern="/var/lib/kubelet/device-plugins/*")
        port, health_port = ports.free(2)
        config = self.folder / "kubelet.json"
        config.write_text(json.dumps(self._kubelet_config(port, health_port), indent=2))
        self.control_plane.component(
            f"kubelet-{self.number}",
            f"--config={config}",
            f"--kubeconfig={self.control_plane.kubeconfig_of(self.name)}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.subnet.gateway}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--cert-dir={self.folder / 'kubelet-keys'}",
            program="kubelet",
            ready=lambda: self.control_plane.answers(f"http://127.0.0.1:{health_port}/healthz"),
            control_groups=controlgroups.of_processes(f"{self.run.parent.name}/system"),
        ).launch()

    def _kubelet_config(self, port: int, health_port: int) -> dict[str, object]:
        keys = self.control_plane.keys
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.subnet.gateway,
            "port": port,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": health_port,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(keys / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.control_group}",
            "failCgroupV1": False,
            "enforceNodeAllocatable": [],
            "oomScoreAdj": 0,
            "resolvConf": "",
            "clusterDNS": [Subnet(0).gateway],
            "clusterDomain": "cluster.local",
            "podLogsDir": str(self.folder / "pod-logs"),
            "volumePluginDir": str(self.folder / "volume-plugins"),
            "nodeLeaseDurationSeconds": NODE_LEASE_SECONDS,
            "makeIPTablesUtilChains": False,
            "serializeImagePulls": False,
            "failSwapOn": False,
            # Images are put here by hand and must stay; the disk is the machine's, shared with everything else.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        }

    def container_pid(self, container_id: str) -> int:
        """The process id, on this machine, of a container's first process.

        Raises:
            ProcessLookupError: no such container runs here.
        """
        file = self.run / "state/io.containerd.runtime.v2.task/k8s.io" / container_id / "init.pid"
        if not file.exists():
            raise ProcessLookupError(f"no container {container_id} runs on {self.name}")
        return int(file.read_text())

    def wait_ready(self) -> None:
        """Wait until the kubelet serves and the cluster calls the node Ready."""
        self.kubelet.wait_ready()
        template = '{.status.conditions[?(@.type=="Ready")].status}'
        asked = ("get", "node", self.name, "--ignore-not-found", f"--output=jsonpath={template}")
        wait_for(f"{self.name} to be Ready", lambda: self.control_plane.kubectl(*asked) == "True")
