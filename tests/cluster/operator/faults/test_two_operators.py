"""Two operators that both write, without a Lease: jobs end as with one, at the cost of requests and perhaps a straggler."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import testbed
from support.operator_cluster import Namespace
from support.operator_process import OperatorProcess
from support.scripted_jobs import ScriptedJobs
from testbed.faultproxy import FaultProxy
from testbed.faults import Delay

SECONDS = 300.0


@pytest.fixture
def _two_operators(cluster: testbed.ControlPlane, proxy: FaultProxy, tmp_path: Path) -> Iterator[None]:
    """Two operators without a Lease: one uses the API server directly, one the proxy."""
    operators = [
        OperatorProcess(kubeconfig, tmp_path / f"{number}.log")
        for number, kubeconfig in enumerate((cluster.kubeconfig, proxy.kubeconfig))
    ]
    for operator in operators:
        operator.start()
    yield
    for operator in operators:
        operator.kill()


@pytest.mark.usefixtures("_two_operators")
@pytest.mark.parametrize(
    "late",
    ["pods", *(pytest.param(late, marks=pytest.mark.nightly) for late in ("nothing", "ddpjobs", "services", ""))],
)
async def test_all_jobs_end_as_with_one_operator_although_one_sees_events_late(
    late: str, namespace: Namespace, cluster: testbed.ControlPlane, proxy: FaultProxy
) -> None:
    rule = proxy.inject(Delay(0.0, 2.0), verbs=("watch",), target=late)
    jobs = ScriptedJobs(namespace, cluster)
    async with jobs.carry_out():
        await jobs.apply_all(0, 1)
        await jobs.end_as_scripted(SECONDS, second_writer=True)
    assert (rule.num_struck > 0) == (late != "nothing")
