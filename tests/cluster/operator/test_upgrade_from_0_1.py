"""From the chart and operator 0.1.0 to this release and back, with jobs that run: no pod restarts and no status is lost."""

import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import testbed
from ddpjob_operator.transport.access import load_access
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.resources import PODS
from support import REPOSITORY
from support.operator_cluster import Namespace, eventually
from support.operator_process import OperatorProcess
from testbed.helm import HelmError

RELEASE = Path(__file__).parent / "releases" / "0.1.0.tar.xz"
CHART = REPOSITORY / "charts" / "ddpjob-operator"
NAMESPACE, NAME = "ddpjob-system", "ddpjob-operator"
#: What this release adds to the status, which 0.1.0 removes as it does not know it.
NEW_FIELDS = (
    "replicas",
    "selector",
    "restarts.podReplacements",
    "restarts.inPlaceCounted",
    "time.unsavedSeconds",
    "failure.globalRank",
)
OLD_API, NEW_API = "ddpjob.dev/v1alpha1", "ddpjob.dev/v1beta1"
#: A rule of this release refuses it in a new job. The status of a stored one must still be written.
REFUSED_TODAY = {"spec": {"containers": [{"name": "trainer", "livenessProbe": {"exec": {"command": ["true"]}}}]}}

Make = Callable[[str], OperatorProcess]


@pytest.fixture(scope="module")
def old_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sources and the chart of 0.1.0."""
    folder = tmp_path_factory.mktemp("0.1.0")
    with tarfile.open(RELEASE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def cluster(old_release: Path) -> Iterator[testbed.ControlPlane]:
    """A control plane of its own, since the CRD is upgraded: with KWOK nodes and the chart 0.1.0."""
    with testbed.ControlPlane() as control_plane:
        control_plane.add_kwok_nodes(2)
        chart = old_release / "charts" / "ddpjob-operator"
        control_plane.helm("install", NAME, chart, "--namespace", NAMESPACE, "--create-namespace")
        control_plane.wait_served("ddpjobs.ddpjob.dev")
        yield control_plane


@pytest.fixture
def operator_of(
    cluster: testbed.ControlPlane, old_release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    """A function that starts the operator of a release, "0.1.0" or "new", with the rights and the Lease of the chart."""
    processes: list[OperatorProcess] = []

    def start(release: str) -> OperatorProcess:
        account = cluster.kubeconfig_of_account(NAMESPACE, NAME)
        roots = f"{old_release / 'operator'}:{old_release / 'trainer'}"
        monkeypatch.setenv("PYTHONPATH", roots if release == "0.1.0" else "")
        arguments = (
            "--lease",
            f"{NAMESPACE}/{NAME}",
            "--lease-seconds",
            "20",  # a busy machine lets an operator wait for seconds, in which it must not lose the Lease
            "--identity",
            f"{release}-{len(processes)}",
        )
        processes.append(OperatorProcess(account, tmp_path / f"{release}.log", *arguments))
        processes[-1].start()
        return processes[-1]

    yield start
    for process in processes:
        if process.running:
            process.kill()


@pytest.fixture
async def namespace(cluster: testbed.ControlPlane, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Namespace]:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    async with Client((await load_access()).configuration) as client:
        yield Namespace(client, "default")


def apply(cluster: testbed.ControlPlane, api: str, name: str, **spec: Any) -> None:
    body = {"apiVersion": api, "kind": "DDPJob", "metadata": {"name": name, "namespace": "default"}}
    cluster.kubectl.apply({**body, "spec": {"nodes": 2, "command": ["python", "train.py"], **spec}})


class Jobs:
    """Reads all jobs in the old version, which both releases of the CRD serve."""

    def __init__(self, cluster: testbed.ControlPlane) -> None:
        self._kubectl = cluster.kubectl

    def statuses(self) -> dict[str, dict[str, Any]]:
        """The status of each job, without what only the new release writes."""
        jobs = self._kubectl.json("get", "ddpjobs.v1alpha1.ddpjob.dev", "-n", "default")["items"]
        known = {job["metadata"]["name"]: job.get("status", {}) for job in jobs}
        for status in known.values():
            for new in NEW_FIELDS:
                of, _, field = new.rpartition(".")
                (status.get(of, {}) if of else status).pop(field, None)
            for failure in status.get("attempts", ()):
                failure.pop("globalRank", None)
        return known

    async def reaches(self, name: str, phase: str, attempt: int = 1) -> None:
        """Wait until the job is in this phase in this attempt."""

        async def there() -> bool:
            status = self.statuses().get(name, {})
            return (status.get("phase"), status.get("attempt")) == (phase, attempt)

        await eventually(f"{name} to be {phase} in attempt {attempt}", there)


async def containers(namespace: Namespace) -> dict[str, str]:
    """uid of each pod by name, of those that belong to jobs and are not being deleted, as survivors of an attempt are."""
    pods = [item["metadata"] async for page in namespace.client.pages(PODS, "default") for item in page.items]
    return {pod["name"]: pod["uid"] for pod in pods if "deletionTimestamp" not in pod}


def lease_holder(cluster: testbed.ControlPlane) -> str:
    return str(cluster.kubectl.json("get", "lease", NAME, "-n", NAMESPACE)["spec"].get("holderIdentity", ""))


async def test_jobs_survive_the_upgrade_from_0_1_0_and_the_return(
    cluster: testbed.ControlPlane, old_release: Path, operator_of: Make, namespace: Namespace
) -> None:
    jobs = Jobs(cluster)
    # 0.1.0 runs a job in its second attempt, and others that run, have succeeded or are suspended.
    old = operator_of("0.1.0")
    apply(cluster, OLD_API, "restarted")
    apply(cluster, OLD_API, "running")
    apply(cluster, OLD_API, "done")
    apply(cluster, OLD_API, "suspended", suspend=True)
    apply(cluster, OLD_API, "refused-today", template=REFUSED_TODAY)
    for name in ("restarted", "running", "done", "refused-today"):
        await jobs.reaches(name, "Running")
    await namespace.ends("restarted-1-1", 1)
    for rank in range(2):
        await namespace.ends(f"done-1-{rank}", 0)
    await jobs.reaches("restarted", "Running", attempt=2)
    await jobs.reaches("done", "Succeeded")
    await jobs.reaches("suspended", "Suspended")
    pods, statuses = await containers(namespace), jobs.statuses()

    # Forward: both releases run at once under the Lease, and the old one hands over.
    cluster.helm("upgrade", NAME, CHART, "--namespace", NAMESPACE, "--reset-then-reuse-values")
    new = operator_of("new")
    assert lease_holder(cluster).startswith("0.1.0")
    apply(cluster, NEW_API, "of-both", nodes=1)
    await jobs.reaches("of-both", "Running")
    old.stop()

    async def is_new() -> bool:
        return lease_holder(cluster).startswith("new") and "selector" in (await namespace.status("restarted"))

    await eventually("the new operator to take over and to act on the jobs", is_new)
    after = jobs.statuses()
    assert {name: after[name] for name in statuses} == statuses
    assert {name: uid for name, uid in (await containers(namespace)).items() if name in pods} == pods
    await namespace.ends("of-both-1-0", 0)
    await jobs.reaches("of-both", "Succeeded")
    for rank in range(2):
        await namespace.ends(f"refused-today-1-{rank}", 0)
    await jobs.reaches("refused-today", "Succeeded")
    apply(cluster, OLD_API, "of-new", nodes=1)
    await jobs.reaches("of-new", "Running")
    apply(cluster, NEW_API, "restarted")  # the same manifest in the new version changes nothing
    apply(cluster, OLD_API, "suspended", suspend=False)
    await jobs.reaches("suspended", "Running")

    # Back: the API server refuses the older CRD, so the documented command keeps the newer one.
    pods, statuses = await containers(namespace), jobs.statuses()
    with pytest.raises(HelmError, match="v1beta1 was previously a storage version"):
        cluster.helm("rollback", NAME, "1", "--namespace", NAMESPACE)
    old_chart = old_release / "charts" / "ddpjob-operator"
    options = ("--namespace", NAMESPACE, "--reset-then-reuse-values", "--set", "crds.enabled=false")
    cluster.helm("upgrade", NAME, old_chart, *options)
    old = operator_of("0.1.0")
    new.stop()
    apply(cluster, NEW_API, "of-old", nodes=1)
    await jobs.reaches("of-old", "Running")
    after = jobs.statuses()
    assert {name: after[name] for name in statuses} == statuses
    assert {name: uid for name, uid in (await containers(namespace)).items() if name in pods} == pods
    for pod in ("restarted-2-0", "restarted-2-1", "of-new-1-0", "of-old-1-0"):
        await namespace.ends(pod, 0)
    for name, attempt in (("restarted", 2), ("of-new", 1), ("of-old", 1)):
        await jobs.reaches(name, "Succeeded", attempt)
