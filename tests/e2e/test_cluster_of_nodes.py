"""The test bed's own nodes: what a killed owner leaves behind goes with the next cluster, and a machine has one cluster.

The other end-to-end tests prove pods, volumes, names, Services, enforced NetworkPolicies, killed containers and killed kubelets.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import testbed
from testbed import instance, oci, packages, paths, tools
from testbed.instance import Instance, InstanceError

TESTS = Path(__file__).parents[1]
PROBE = "testbed.invalid/probe:1"


def state_of_machine() -> Mapping[str, object]:
    """All that a cluster could leave on this machine outside its cache."""

    def shown(*command: str) -> list[str]:
        return sorted(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines())

    folders = ("/run", "/var/lib/cni", "/var/lib/cni/results", "/var/lib/kubelet", "/var/log/containers", "/run/netns")
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return {
        "links": [link["ifname"] for link in json.loads("".join(shown("ip", "-json", "link")))],
        "routes": shown("ip", "route", "show", "table", "all"),
        "rules": shown("nft", "list", "ruleset"),
        "forwarding": Path("/proc/sys/net/ipv4/ip_forward").read_text(),
        "mounts": [mount for mount in mounts if "testbed" in mount or str(paths.cache()) in mount],
        "control groups": [str(group) for group in Path("/sys/fs/cgroup").glob("*/testbed*")],
        "files": [str(file) for folder in folders for file in sorted(Path(folder).glob("*"))],
        "processes": testbed.pids_with(f"{paths.cache()}/tools/containerd", file="cmdline"),
    }


def wait_until_as(before: Mapping[str, object]) -> None:
    """Network namespaces of containers, and the devices in them, go a moment after their last process."""
    with contextlib.suppress(testbed.DeadlineError):
        testbed.wait_for("the machine to be as it was", lambda: state_of_machine() == before)
    assert state_of_machine() == before


def pod(name: str, node: str, *arguments: str, **labels: str) -> dict[str, object]:
    allowed = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
    container = {"name": "probe", "image": PROBE, "args": list(arguments), "securityContext": allowed}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    }


OWNER = """
import sys, testbed
from pathlib import Path

cluster = testbed.Cluster("killed", nodes=2)
cluster.start()
cluster.load_image(Path(sys.argv[1]))
cluster.kubectl("apply", "-f", "-", stdin=sys.argv[2])
cluster.kubectl("wait", "--for=condition=Ready", "pod/left", "--timeout=240s")
print("running", cluster.control_plane.instance._guard.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif("E2E_KUBECONFIG" in os.environ, reason="E2E_KUBECONFIG names a cluster to use instead")
def test_the_next_cluster_removes_one_whose_owner_and_guard_were_killed_and_keeps_images(tmp_path: Path) -> None:
    """Before the other end-to-end tests bring up theirs: files run in the order of their names."""
    assert not [other for other in instance.instances() if "nodes" in other.description], "a cluster runs already"
    packages.install_missing()  # with the programs that show what is on the machine
    machine_before, archive = state_of_machine(), tmp_path / "probe.tar"
    oci.write_program(archive, name=PROBE, program=tools.path("probe"))
    command = [sys.executable, "-c", OWNER, str(archive), json.dumps(pod("left", "node-0", "serve", ":8080"))]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        guard = next(int(line.split()[1]) for line in owner.stdout if line.startswith("running"))
        os.kill(guard, signal.SIGKILL)
        owner.kill()
    assert state_of_machine() != machine_before
    assert not Instance("killed").alive

    # The next cluster clears it all away, and has the image without loading it.
    with testbed.Cluster(nodes=2) as successor:
        assert not Instance("killed").folder.exists()
        successor.kubectl.apply([pod(f"right-{number}", f"node-{number}", "serve", ":8080") for number in range(2)])
        for number in range(2):
            successor.kubectl("wait", "--for=condition=Ready", f"pod/right-{number}", "--timeout=240s")
    wait_until_as(machine_before)


def test_a_second_cluster_is_refused_while_one_runs(machine: testbed.Cluster) -> None:
    with pytest.raises(InstanceError, match=f"{machine.control_plane.name}.* is running; a machine holds one"):
        testbed.Cluster(nodes=1).start()
