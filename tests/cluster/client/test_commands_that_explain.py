"""doctor, explain, plot and report against a real API server and the real operator process. KWOK nodes keep no logs."""

import json

import pytest

import testbed
from ddpjob.client import AsyncClient
from ddpjob_cli.__main__ import main
from support.operator_cluster import SECONDS, Namespace

pytestmark = pytest.mark.usefixtures("operator_process")
JOB = {
    "apiVersion": "ddpjob.dev/v1beta1",
    "kind": "DDPJob",
    "spec": {"command": ["x"], "nodes": 2, "restart": {"maxRestarts": 0}},
}


@pytest.fixture
def options(cluster: testbed.ControlPlane, namespace: Namespace) -> list[str]:
    return ["-n", namespace.name, "--kubeconfig", str(cluster.kubeconfig)]


async def test_a_failed_job_is_explained_and_reported(
    sdk: AsyncClient, namespace: Namespace, options: list[str], tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    await sdk.submit(JOB, name="net")
    await sdk.wait("net", until="running", timeout=SECONDS)
    await namespace.ends("net-1-1", 3, "ValueError: boom")
    await sdk.wait("net", timeout=SECONDS)

    assert main(["explain", "net", *options]) == 0
    shown = capsys.readouterr().out
    assert "class: ProgramError" in shown
    assert "message: ValueError: boom" in shown
    assert main(["report", "net", "-o", str(tmp_path / "net.html"), *options]) == 0
    assert "ValueError: boom" in (tmp_path / "net.html").read_text()
    assert main(["explain", "nowhere", *options]) == 2
    assert "nowhere does not exist" in capsys.readouterr().err


def test_doctor_reads_the_cluster(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "-o", "json", *options]) == 1, "the operator is no pod of this cluster"
    found = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert found["API server"]["text"].startswith("v1.")
    assert found["DDPJob type"]["text"] == "ddpjob.dev/v1beta1 is served, with all fields of this release"
    assert {subject for subject, finding in found.items() if finding["state"] == "problem"} == {"operator"}
    assert main(["doctor", "--kubeconfig", "/nowhere"]) == 3
