"""What `kubectl describe ddpjob` shows of a job on a real API server, as golden files.

What differs between two runs is replaced: times, names of namespaces and nodes, identifiers, and how often an Event came.
"""

import re
from pathlib import Path

import pytest

import testbed
from support import golden
from support.operator_cluster import Namespace, eventually

pytestmark = pytest.mark.usefixtures("operator_process")
VOLATILE = {
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ": "<time>",
    r"(Resource Version: +)\d+": r"\1<version>",
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}": "<uid>",
    r"\boperator-\d+\b": "<namespace>",
    r"\bkwok-[\w.-]+": "<node>",
    r"((?:Lost|Queued|Starting|Training|Unsaved) Seconds: +)[\d.]+": r"\1<seconds>",
    r"(Goodput Percent: +)[\d.]+": r"\1<percent>",
    r"(Normal|Warning)  (\w+) .*ddpjob-operator +": r"\1  \2  <age>  ddpjob-operator  ",
}


async def ends_with(text: str, cluster: testbed.ControlPlane, namespace: Namespace) -> str:
    """What `kubectl describe` shows of the job once it has an Event with this text; Events come after the status."""

    def described() -> str | None:
        shown = cluster.kubectl("describe", "ddpjob", "job", "-n", namespace.name)
        return shown if text in shown.partition("\nEvents:")[2] else None

    shown = await eventually(f"an Event with {text!r}", described)
    for pattern, stands_for in VOLATILE.items():
        shown = re.sub(pattern, stands_for, shown)
    return shown


async def test_a_job_that_succeeded(cluster: testbed.ControlPlane, namespace: Namespace) -> None:
    await namespace.apply("job", nodes=2)
    await namespace.reaches("job", "Running")
    await namespace.succeeds("job")
    shown = await ends_with("all 2 ranks ended with exit code 0", cluster, namespace)
    golden.check(Path(__file__).parent / "describe" / "succeeds.txt", shown)


async def test_a_job_whose_program_fails_restarts_and_then_fails(
    cluster: testbed.ControlPlane, namespace: Namespace
) -> None:
    await namespace.apply("job", nodes=2, restart={"maxRestarts": 1})
    for attempt in (1, 2):
        await namespace.reaches("job", "Running", attempt)
        await namespace.ends(f"job-{attempt}-1", 1, "ValueError: label 12 is out of range")
    await namespace.reaches("job", "Failed", 2)
    shown = await ends_with("Failed", cluster, namespace)
    golden.check(Path(__file__).parent / "describe" / "program-error.txt", shown)
