"""`helm upgrade` from the chart and the operator of a git revision to this checkout restarts no gang that runs.

    FROM=REVISION pytest hack/proofs/prove_upgrade.py

`tests/cluster/operator/test_upgrade_from_0_1.py` proves the same for the release 0.1.0 on each change.
"""

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import testbed
from ddpjob_operator.api.names import API_VERSION, KIND
from ddpjob_operator.transport.access import load_access
from ddpjob_operator.transport.client import Client
from support import REPOSITORY
from support.operator_cluster import Namespace, eventually
from support.operator_process import OperatorProcess

NAMESPACE, NAME = "ddpjob-system", "ddpjob-operator"
CHART = Path("charts/ddpjob-operator")
#: What is hashed or stored in different ways: commands, the built-in trainer, templates, restarts in place, volumes, growth.
SPECS: dict[str, dict[str, Any]] = {
    "command": {"command": ["torchrun", "train.py"], "env": [{"name": "A", "value": "$(RANK)"}], "processesPerNode": 2},
    "trainer": {"trainer": {"recipe": "digits", "epochs": 3}, "checkpoint": {"volume": {"emptyDir": {}}}},
    "template": {
        "command": ["python", "train.py"],
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
        "template": {
            "metadata": {"labels": {"team": "a"}},
            "spec": {
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "containers": [{"name": "trainer", "startupProbe": {"exec": {"command": ["true"]}}}],
            },
        },
    },
    "in-place": {"command": ["python", "-m", "ddpjob.launch", "x.py"], "restart": {"inPlace": True}, "minNodes": 1},
    "restarted": {"command": ["python", "train.py"], "deadlines": {"hangSeconds": 900}},
}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder with the sources and the chart of the revision."""
    command = ["git", "archive", os.environ["FROM"], "operator", "trainer", "charts"]
    archive = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(tmp_path / "old", filter="data")
    return tmp_path / "old"


@pytest.fixture
def cluster(old: Path) -> Iterator[testbed.ControlPlane]:
    """A control plane with KWOK nodes and the chart of the revision."""
    with testbed.ControlPlane() as cluster:
        cluster.add_kwok_nodes(2)
        cluster.helm("install", NAME, old / CHART, "--namespace", NAMESPACE, "--create-namespace")
        cluster.wait_served("ddpjobs.ddpjob.dev")
        yield cluster


def gangs(cluster: testbed.ControlPlane) -> dict[str, Any]:
    """Attempt and restarts of each job, and uid of each pod."""
    jobs = cluster.kubectl.json("get", "ddpjobs", "-n", "default")["items"]
    pods = cluster.kubectl.json("get", "pods", "-n", "default")["items"]
    found = {job["metadata"]["name"]: (job["status"]["attempt"], job["status"]["restarts"]["counted"]) for job in jobs}
    alive = [pod["metadata"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return {**found, **{pod["name"]: pod["uid"] for pod in alive}}


async def test_an_upgrade_restarts_no_gang_that_runs(
    cluster: testbed.ControlPlane, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs of all kinds run on in their attempts and pods, and end under the new operator."""

    def start(release: str, roots: str) -> OperatorProcess:
        monkeypatch.setenv("PYTHONPATH", roots)
        account = cluster.kubeconfig_of_account(NAMESPACE, NAME)
        lease = ("--lease", f"{NAMESPACE}/{NAME}", "--lease-seconds", "20", "--identity", release)
        operator = OperatorProcess(account, tmp_path / f"{release}.log", *lease)
        operator.start()
        return operator

    def has(name: str, phase: str, attempt: int = 1) -> bool:
        status = cluster.kubectl.json("get", "ddpjob", name, "-n", "default").get("status", {})
        return (status.get("phase"), status.get("attempt")) == (phase, attempt)

    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    async with Client((await load_access()).configuration) as client:
        namespace = Namespace(client, "default")
        before = start("old", f"{old / 'operator'}:{old / 'trainer'}")
        for name, spec in SPECS.items():
            body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name, "namespace": "default"}}
            cluster.kubectl.apply({**body, "spec": {"nodes": 2, **spec}})
        for name in SPECS:
            await eventually(f"{name} to run", partial(has, name, "Running"))
        await namespace.ends("restarted-1-1", 1)
        await eventually("the second attempt to run", lambda: has("restarted", "Running", 2))
        kept = gangs(cluster)

        cluster.helm("upgrade", NAME, REPOSITORY / CHART, "--namespace", NAMESPACE, "--reset-then-reuse-values")
        after = start("new", "")
        before.stop()
        await namespace.apply("of-new", nodes=1, command=["python", "train.py"])
        await eventually("the new operator to act", lambda: has("of-new", "Running"))
        assert {name: value for name, value in gangs(cluster).items() if name in kept} == kept
        for name in SPECS:
            attempt = kept[name][0]
            for rank in range(2):
                await namespace.ends(f"{name}-{attempt}-{rank}", 0)
            await eventually(f"{name} to end", partial(has, name, "Succeeded", attempt))
        after.kill()
