"""The number of writes that a job without trouble costs the API server, from its creation to its end."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import testbed
from support import REPOSITORY
from support.operator_cluster import Namespace, eventually
from support.operator_process import OperatorProcess

CALM = REPOSITORY / "tests/support/calm_operator.py"
REQUESTS = re.compile(r'^ddpjob_api_requests_total\{code="(\w+)",resource="(\w+)",verb="(\w+)"\} (\S+)$', re.MULTILINE)


@pytest.fixture
def operator_alone(cluster: testbed.ControlPlane, namespace: Namespace, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator for the test's namespace alone, so that other jobs are not counted."""
    arguments = ("--namespace", namespace.name)
    process = OperatorProcess(cluster.kubeconfig, tmp_path / "log", *arguments, program=(str(CALM),))
    process.start()
    yield process
    process.stop()


def writes(operator: OperatorProcess) -> Counter[str]:
    """Requests that write, including refused ones, by verb and resource."""
    counts: Counter[str] = Counter()
    for _, resource, verb, value in REQUESTS.findall(operator.get("/metrics")):
        if verb not in ("get", "list", "watch", "log"):
            counts[f"{verb} {resource}"] += round(float(value))
    return counts


async def test_a_job_without_trouble_costs_its_objects_a_few_status_writes_and_two_events(
    namespace: Namespace, operator_alone: OperatorProcess
) -> None:
    at_start = writes(operator_alone)  # questions about the operator's own rights
    await namespace.apply("j", nodes=3)
    await namespace.reaches("j", "Running")
    await namespace.succeeds("j")
    await eventually(
        "the Events of the start and of the end", lambda: (writes(operator_alone) - at_start)["create events"] == 2
    )
    counts = writes(operator_alone) - at_start
    assert counts.pop("patch ddpjobs") <= 4
    assert counts == {"create services": 1, "create networkpolicies": 1, "create pods": 3, "create events": 2}
