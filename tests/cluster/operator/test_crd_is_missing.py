"""The operator ends with a clear last line where the API server does not serve DDPJobs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import testbed
from support import REPOSITORY
from support.operator_cluster import Namespace
from support.operator_process import OperatorProcess
from testbed.faultproxy import FaultProxy
from testbed.faults import Answer


def test_the_operator_ends_if_kopf_finds_no_ddpjobs(cluster: testbed.ControlPlane, tmp_path: Path) -> None:
    """An API server that has just started does not serve custom resources for a moment, in which kopf may ask."""
    with FaultProxy(cluster) as proxy:
        proxy.inject(Answer(404), target=r"^/apis/ddpjob\.dev/v1beta1$", skip=1)  # the first to ask is not kopf
        process = OperatorProcess(proxy.kubeconfig, tmp_path / "log")
        try:
            with pytest.raises(AssertionError, match=r"ended with code 1:(?s:.*)served ddpjobs a moment ago"):
                process.start()
        finally:
            if process.process is not None and process.process.poll() is None:
                process.kill()


@pytest.fixture
def crd(cluster: testbed.ControlPlane) -> Iterator[str]:
    """The name of the CRD, which is installed again after the test."""
    yield "ddpjobs.ddpjob.dev"
    cluster.kubectl("apply", "--server-side", "-f", str(REPOSITORY / "manifests" / "crd"))
    cluster.wait_served("ddpjobs.ddpjob.dev")


async def test_the_last_line_names_a_deleted_crd(
    cluster: testbed.ControlPlane, namespace: Namespace, crd: str, operator_process: OperatorProcess
) -> None:
    await namespace.apply("j", nodes=2)
    await namespace.reaches("j", "Running")
    cluster.kubectl("delete", "crd", crd)
    assert operator_process.process is not None
    assert operator_process.process.wait(timeout=240) == 1
    last_line = operator_process.log.read_text().splitlines()[-1]
    assert "no longer serves DDPJobs" in last_line, last_line
