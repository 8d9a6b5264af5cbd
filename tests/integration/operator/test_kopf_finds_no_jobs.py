"""An API server that has just started does not serve custom resources for a moment, in which kopf may ask for them."""

from pathlib import Path

import pytest

import testbed
from operator_cluster import OperatorProcess
from testbed.faultproxy import FaultProxy
from testbed.faults import Answer


def test_an_operator_that_would_be_blind_ends(cluster: testbed.ControlPlane, tmp_path: Path) -> None:
    with FaultProxy(cluster) as proxy:
        proxy.inject(Answer(404), target=r"^/apis/ddpjob\.dev/v1alpha1$", skip=1)  # the first to ask is not kopf
        process = OperatorProcess(proxy.kubeconfig, tmp_path / "log")
        try:
            with pytest.raises(AssertionError, match=r"ended with code 1:(?s:.*)served ddpjobs a moment ago"):
                process.start()
        finally:
            if process.process is not None and process.process.poll() is None:
                process.kill()
